"""The output that a terminal shows, and the output that it does not."""

import re

from treefold.cli.tables import Table

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TestTerminal:
    def test_frames_tables(self, in_terminal):
        lines = ESCAPES.sub("", in_terminal("topology", "ring:3")).splitlines()
        assert lines[2].startswith("╭─")
        assert [cell.strip() for cell in lines[3].split("│")[1:-1]] == ["link", "kind", "GB/s", "alpha µs"]
        assert [cell.strip() for cell in lines[5].split("│")[1:-1]] == ["gpu:0 - gpu:1", "nvlink", "25", "0.7"]

    def test_frames_no_table_that_is_too_wide(self, in_terminal):
        shown = ESCAPES.sub("", in_terminal("bench", "-e", "4K", "-n", "1", columns=60))
        assert "╭" not in shown
        assert re.search(r"^work +size \(B\) +count", shown, re.MULTILINE)

    def test_breaks_cells_between_words_before_it_gives_up_the_frame(self, in_terminal):
        """Eighty columns are enough for what ``treefold plan`` predicts; no number is broken."""
        lines = ESCAPES.sub("", in_terminal("plan", "-t", "dgx1_v100", "-s", "256M", columns=80)).splitlines()
        predicted = lines[lines.index("predicted") + 1 :]
        assert (predicted[0][0], max(map(len, predicted[:7]))) == ("╭", 80)
        assert any("3.15 ms" in line and "21.7 ms" in line and "11 ms" in line for line in predicted)

    def test_breaks_words_in_narrow_tables(self, in_terminal):
        lines = ESCAPES.sub("", in_terminal("topology", "--list", columns=70)).splitlines()
        assert max(map(len, lines)) <= 70
        assert sum("dgx1_v100" in line for line in lines) == 1

    def test_colours_errors(self, in_terminal):
        assert in_terminal("plan", "--nosuch") == (
            "\x1b[1;31mtreefold:\x1b[0m No such option: --nosuch. See treefold plan --help.\n"
        )

    def test_has_no_colours_under_no_color(self, in_terminal):
        """https://no-color.org: frames stay, and so does bold print."""
        for arguments in (["plan", "--nosuch"], ["topology", "ring:3"], ["plan", "--help"]):
            sent = in_terminal(*arguments, NO_COLOR="1")
            assert re.findall(r"\x1b\[[0-9;]*(?<!\d)(?:3[0-7]|9[0-7]|4[0-7])m", sent) == []

    def test_shows_framed_help_with_examples_in_lines_of_their_own(self, in_terminal):
        help_ = ESCAPES.sub("", in_terminal("plan", "-h"))
        assert "╭─ Options" in help_
        assert re.search(r"^ +treefold plan dgx1_v100 --size 256M --draw plan.html *$", help_, re.MULTILINE)


class TestTable:
    def test_sets_words_left_and_numbers_right(self):
        table = Table(["a", "number", "words"], [["x", "1", "some"], ["yyy", "12345678", "w"]], words=(0, 2))
        assert str(table).splitlines() == [
            "a      number  words",
            "---  --------  -----",
            "x           1  some",
            "yyy  12345678  w",
        ]
