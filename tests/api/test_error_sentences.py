from pathlib import Path

import pytest

from treefold.errors import CheckpointError, CommandError, PeerError

PATH = Path("a.pt")

SENTENCES = [
    (
        CheckpointError.damaged(PATH, "member", "x.txt"),
        "'a.pt' is no npz file: 'x.txt' in it is no npy file. Nothing was written.",
    ),
    (
        CheckpointError.damaged(PATH, "array twice", "w"),
        "'a.pt' is no npz file: it has 'w' twice. Nothing was written.",
    ),
    (CheckpointError.damaged(PATH, "version", (9, 0)), "'a.pt' is no npz file: (9, 0). Nothing was written."),
    (
        CheckpointError.damaged(PATH, "entry twice", "w"),
        "'a.pt' is no safetensors file: its header has 'w' twice. Nothing was written.",
    ),
    (
        CheckpointError.foreign(PATH, "npz", ValueError("File is not a zip file. Ask somebody.\nTwice.")),
        "'a.pt' is no npz file: File is not a zip file. Nothing was written.",
    ),
    (CheckpointError.foreign(PATH, "npz", EOFError()), "'a.pt' is no npz file: EOFError. Nothing was written."),
    (
        CheckpointError.unreadable(PATH, PermissionError(13, "Permission denied")),
        "'a.pt' cannot be read: permission denied. Nothing was written.",
    ),
    (
        CommandError.no_plan_file("p.json", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")),
        "--plan cannot read 'p.json': it is no text. Write plans with treefold plan --save.",
    ),
    (PeerError.lacks("MPI", "bfloat16"), "MPI has no bfloat16"),
    (PeerError.mean_of_integers(), "the mean of integers has another dtype"),
]


@pytest.mark.parametrize(("error", "sentence"), SENTENCES, ids=[sentence for _, sentence in SENTENCES])
def test_sentences_are_these(error, sentence):
    assert str(error) == sentence
