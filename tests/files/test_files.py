"""Writing files, the same for reports, caches and checkpoints: all of it or nothing, and only where it was said."""

import hashlib
import os
import re
import socket
import stat
import sys
from pathlib import Path

import pytest

from treefold import files
from treefold.files import check_writable, write_atomically, written_whole

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="needs the modes and links of POSIX")


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def write(path, contents=b"new", **how):
    with written_whole(path, **how) as file:
        file.write(contents)


class TestWriteAtomically:
    def test_writes_all_of_it(self, tmp_path):
        write_atomically(tmp_path / "a.html", "→")
        write_atomically(tmp_path / "a.png", b"\r\n\xff")
        assert (tmp_path / "a.html").read_bytes() == "→".encode()
        assert (tmp_path / "a.png").read_bytes() == b"\r\n\xff"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.png"]

    def test_keeps_the_old_file_when_it_fails(self, tmp_path):
        path = tmp_path / "a.html"
        path.write_text("old")
        with pytest.raises(UnicodeEncodeError):
            write_atomically(path, "new \ud800")
        assert path.read_text() == "old"
        assert [found.name for found in tmp_path.iterdir()] == ["a.html"]


class TestWrittenWhole:
    def test_shows_nothing_before_the_end(self, tmp_path):
        with written_whole(tmp_path / "out") as file:
            file.write(b"half")
            assert not (tmp_path / "out").exists()
        assert (tmp_path / "out").read_bytes() == b"half"

    @pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit])
    def test_leaves_nothing_after_an_error(self, tmp_path, error):
        def write_half():
            with written_whole(tmp_path / "out") as file:
                file.write(b"half")
                raise error

        with pytest.raises(error):
            write_half()
        assert list(tmp_path.iterdir()) == []

    def test_gives_every_writer_a_file_of_its_own(self, tmp_path):
        """Two processes of one number (in two containers) that write one output do not mix: the last one wins."""
        with written_whole(tmp_path / "out") as first, written_whole(tmp_path / "out") as second:
            first.write(b"1" * 4)
            second.write(b"2" * 3)
        assert (tmp_path / "out").read_bytes() == b"1111"
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_never_writes_into_a_file_that_is_there(self, tmp_path, monkeypatch):
        """A draft's name cannot be known; a file or a link that has it all the same is not written to."""
        monkeypatch.setattr(files.secrets, "token_hex", lambda _: "known")
        (tmp_path / "theirs").write_text("theirs")
        digest = hashlib.sha256(b"out").hexdigest()[:16]
        (tmp_path / f".treefold-{digest}-known.tmp").symlink_to(tmp_path / "theirs")
        with pytest.raises(FileExistsError):
            write(tmp_path / "out")
        assert (tmp_path / "theirs").read_text() == "theirs"
        assert not (tmp_path / "out").exists()

    @needs_posix
    @pytest.mark.usefixtures("umask")
    @pytest.mark.parametrize("old", [0o600, 0o640, 0o664, 0o444])
    def test_keeps_the_mode_of_the_old_file(self, tmp_path, old):
        (tmp_path / "out").write_text("old")
        (tmp_path / "out").chmod(old)
        write(tmp_path / "out", mode=0o622)
        assert (mode_of(tmp_path / "out"), (tmp_path / "out").read_text()) == (old, "new")

    @needs_posix
    @pytest.mark.usefixtures("umask")
    @pytest.mark.parametrize(("how", "mode"), [({}, 0o644), ({"mode": 0o600}, 0o600), ({"mode": 0o660}, 0o640)])
    def test_gives_a_new_file_the_mode_less_the_umask(self, tmp_path, how, mode):
        write(tmp_path / "out", **how)
        assert mode_of(tmp_path / "out") == mode

    @needs_posix
    @pytest.mark.usefixtures("umask")
    def test_is_never_wider_than_its_mode(self, tmp_path):
        """The draft of a private file is private from its first byte."""
        with written_whole(tmp_path / "out", mode=0o600) as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600

    @needs_posix
    def test_writes_through_a_link(self, tmp_path):
        """The link stays a link, relative or not, and the file that it points to is replaced where it lies."""
        (tmp_path / "far").mkdir()
        (tmp_path / "far" / "real").write_text("old")
        (tmp_path / "link").symlink_to("far/real")
        write(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert [(path.name, path.read_text()) for path in (tmp_path / "far").iterdir()] == [("real", "new")]

    @needs_posix
    @pytest.mark.parametrize(("link", "words"), [("nothing", "No such file"), ("link", "Too many levels|loop")])
    def test_refuses_links_to_nothing(self, tmp_path, link, words):
        (tmp_path / "link").symlink_to(link)
        for act in (check_writable, write):
            with pytest.raises(OSError, match=words):
                act(tmp_path / "link")
        assert [path.name for path in tmp_path.iterdir()] == ["link"]

    @needs_posix
    def test_takes_the_longest_name(self, tmp_path):
        """The draft's name is not made of the output's: 255 bytes are allowed, 256 are refused before the work."""
        write(tmp_path / ("n" * 255))
        assert [len(path.name) for path in tmp_path.iterdir()] == [255]
        with pytest.raises(OSError, match="too long"):
            check_writable(tmp_path / ("n" * 256))

    @needs_posix
    def test_is_on_disk_before_it_has_its_name(self, tmp_path, monkeypatch):
        """After a power cut there is the old file or the new one: the bytes, then the name, then the folder."""
        done, fsync = [], os.fsync
        monkeypatch.setattr(
            os, "fsync", lambda fd: (done.append((os.fstat(fd).st_size, (tmp_path / "out").exists())), fsync(fd))
        )
        write(tmp_path / "out", b"12345")
        assert done[0] == (5, False)
        assert [exists for _, exists in done] == [False, True]


class TestCheckWritable:
    def test_leaves_nothing_behind(self, tmp_path):
        check_writable(tmp_path / "a.html")
        assert list(tmp_path.iterdir()) == []

    def test_leaves_an_existing_file_alone(self, tmp_path):
        (tmp_path / "a.html").write_text("old")
        check_writable(tmp_path / "a.html")
        assert (tmp_path / "a.html").read_text() == "old"

    @pytest.mark.parametrize("name", ["", "missing/a.html", "file/a.html"])
    def test_raises_what_writing_would(self, tmp_path, name):
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match=r"director"):
            check_writable(tmp_path / name)

    @needs_posix
    def test_refuses_what_is_no_file(self, tmp_path, monkeypatch):
        """Devices, pipes and sockets keep their places: root would replace /dev/null by a file."""
        monkeypatch.chdir(tmp_path)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
            for act in (check_writable, write):
                with pytest.raises(OSError, match="it is not a regular file"):
                    act(tmp_path / "socket")


class TestPackage:
    def test_writes_files_nowhere_else(self):
        source = Path(files.__file__).parent
        creates = re.compile(
            r"write_text\(|write_bytes\(|savefig\((?!file)|open\([^)]*['\"][wxa]b?['\"]|NamedTemp|mkstemp"
        )
        found = [path.name for path in source.rglob("*.py") if creates.search(path.read_text(encoding="utf-8"))]
        assert found == ["files.py"]
