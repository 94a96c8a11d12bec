"""The questions that people come with: each is a heading, with a program below it and the words of a search."""

import re

import pytest
from papers import ROOT

#: The question, its page, and the words by which it is searched for, in its heading or below it.
QUESTIONS = [
    ("How do I get the same bits on any number of ranks?", "one_training", "deterministic, reproducible"),
    ("How do I keep golden losses in CI?", "one_training", "golden loss, golden SHA, CI"),
    ("How do I run DDP on one host, or on several?", "torch_backend", "DDP, DistributedDataParallel, torchrun"),
    ("How do I use FSDP2 or HSDP?", "torch_backend", "FSDP2, HSDP, fully_shard"),
    ("How do I use Lightning?", "torch_backend", "Lightning, DDPStrategy"),
    ("How do I use Accelerate, or the Trainer?", "torch_backend", "Accelerate, Trainer, transformers"),
    ("How do I train a Keras model on several processes?", "keras", "Keras"),
    ("How do I move from Horovod?", "migrating", "Horovod, hvd"),
    ("How do I move from MirroredStrategy?", "migrating", "MirroredStrategy, tf.distribute"),
    (
        "How do I average checkpoints?",
        "averaging",
        "Hugging Face, shards, SWA, stochastic weight averaging, EMA, model soup, task arithmetic",
    ),
    ("How do I run federated rounds?", "streams", "federated, Flower, NVFlare"),
    ("How do I use mpi4py?", "between_processes", "mpi4py, mpiexec"),
    ("How do I find out why a job hangs, or died?", "hangs", "hangs, died"),
    ("How do I limit threads and memory?", "between_processes", "OMP_NUM_THREADS, threads, memory"),
    ("How do I see what a call does, and how long it takes?", "hangs", "profiler"),
    ("How do I run it under SLURM?", "between_hosts", "SLURM, srun"),
    ("How do I run it in containers?", "between_processes", "Docker, containers"),
    ("How do I use it on Windows or macOS?", "works", "Windows, macOS"),
    ("How do I use it on GPUs?", "gpus", "GPU, NVIDIA, NCCL"),
]
GUIDES = (ROOT / "docs" / "guides.md").read_text(encoding="utf-8")
MOST_GUIDES = 12
MOST_PAGES = 34


def anchor(heading):
    """Return the anchor that GitHub and MyST make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def below(page, heading):
    """Return what stands below a heading of the second level, up to the next one."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page}.md has no heading: {heading}"
    return found[1].strip()


class TestQuestions:
    @pytest.mark.parametrize(("question", "page", "words"), QUESTIONS)
    def test_is_answered_by_a_program_that_stands_first(self, question, page, words):
        answer = below(page, question)
        assert re.match(r"```(python|console|sh|\{literalinclude\} \S+)\n", answer)
        shown = f"{question}\n{answer}"
        assert [word for word in words.split(", ") if word.lower() not in shown.lower()] == []

    @pytest.mark.parametrize(("question", "page"), [(question, page) for question, page, _ in QUESTIONS])
    def test_is_two_clicks_from_the_first_page(self, question, page):
        assert f"| [{question}]({page}.md#{anchor(question)}) |" in GUIDES
        assert "\nguides\n" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")

    def test_leads_to_headings_that_are_there(self):
        links = re.findall(r"^\| \[(.*?)\]\((\w+)\.md#(.*?)\) \|", GUIDES, re.MULTILINE)
        assert len(links) >= len(QUESTIONS)
        assert [link for link in links if anchor(link[0]) != link[2] or not below(link[1], link[0])] == []


class TestGuides:
    def test_are_few(self):
        toctree = re.search(r"```\{toctree\}\n:hidden:\n\n(.*?)```", GUIDES, re.DOTALL)[1].split()
        assert len(toctree) <= MOST_GUIDES
        assert {page for _, page, _ in QUESTIONS} <= set(toctree)

    def test_pages_are_few(self):
        pages = [path.relative_to(ROOT / "docs").parts for path in (ROOT / "docs").rglob("*.md")]
        assert len([parts for parts in pages if parts[0] not in {"adr", "reference"}]) <= MOST_PAGES
