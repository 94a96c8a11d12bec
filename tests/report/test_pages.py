import pytest

from treefold.cli.tables import Table, markdown_table, plain_table
from treefold.topology.drawing.page import Check, Page, Section, html_table, render_page

HOSTILE = "<script>alert('x')</script> & \"y\""


class TestPlainTable:
    def test_takes_no_rows(self):
        assert plain_table(["a", "b"], []) == "a    b\n--  --"

    def test_refuses_ragged_rows(self):
        with pytest.raises(ValueError, match="zip"):
            plain_table(["a", "b"], [["1"]])


class TestMarkdownTable:
    def test_escapes_what_would_end_a_cell(self):
        assert markdown_table(["a", "b"], [["x|y\nz", "1"]]).splitlines()[2] == "| x\\|y z |  1 |"


class TestHtmlTable:
    def test_is_a_table_with_its_headers(self):
        html = html_table(Table(("size", "rings"), (("4 KiB", "9 µs"), ("1 GiB", "12 ms"))))
        assert html.count('<th scope="col">') == html.count('<th scope="row">') == 2
        assert html.count("<td>") == 2

    def test_breaks_long_cells_into_lines(self):
        html = html_table(Table(("a", "b", "c"), (("0", "1", "1→0, " * 31), ("1", "2", "1→0"))))
        assert html.count('<td class="long">') == html.count("<td>") == 2
        assert '<th scope="col" class="long">c</th>' in html

    def test_lets_only_long_names_of_rows_break_on_phones(self):
        html = html_table(Table(("", "a"), (("256 MiB", "1"), ("largest difference of a weight", "2"))))
        assert '<th scope="row">256 MiB</th>' in html
        assert '<th scope="row" class="name">largest difference of a weight</th>' in html

    def test_scrolls_by_itself(self):
        assert html_table(Table(("a",), ())).startswith('<div class="table" role="region" aria-label="table" tabindex')


class TestRenderPage:
    def test_has_no_frame_around_nothing(self):
        html = render_page(Page("t", "", (), (), (Section("h", "", drawing="<svg/>"),), ()))
        body = html.partition("<body>")[2]
        assert body.count("<section>") == 1
        assert not [tag for tag in ("<dl", "<ul", "<footer", "<p>", "<pre", "<table") if tag in body]
        assert "Checks" not in body

    def test_escapes_every_text(self):
        page = Page(
            HOSTILE,
            HOSTILE,
            ((HOSTILE, HOSTILE, HOSTILE),),
            (Check(HOSTILE, holds=True, found=HOSTILE),),
            (Section(HOSTILE, HOSTILE, "<svg/>", HOSTILE, Table((HOSTILE,), ((HOSTILE,),))),),
            ((HOSTILE, HOSTILE),),
        )
        html = render_page(page)
        assert "<script>" not in html
        assert 'label="<' not in html
        assert "<svg/>" in html

    def test_folds_a_table_away_below_all_else(self):
        section = Section("h", "", verbatim="v", table=Table(("a",), (("1",),)), folded="The <rows>")
        html = render_page(Page("t", "", (), (), (section,), ()))
        assert "<pre>v</pre><details><summary>The &lt;rows&gt;</summary><div class=" in html

    def test_says_failed_in_words(self):
        html = render_page(Page("t", "s", (), (Check("c", holds=False, found="f"),), (), ()))
        assert '<li class="failed"><b>failed</b>' in html
