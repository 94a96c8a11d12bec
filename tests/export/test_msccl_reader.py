"""The reader of MSCCL XML refuses what is broken, and its run what is wrong: sentences, one each."""

import os
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treefold.errors import ExportError
from treefold.export.msccl import to_msccl
from treefold.export.msccl_algorithm import Algorithm, Block, Gpu, Place, Step, check_limits
from treefold.export.msccl_run import prove_msccl
from treefold.export.msccl_xml import read_msccl, write_msccl_xml
from treefold.planners.methods import one_array, plan_star, plan_two_level

NOWHERE = Place("i", -1)
_ASKED = os.environ.get("TREEFOLD_CASES", "100")
CASES = 2000 if _ASKED == "full" else int(_ASKED)


def step(kind, source=NOWHERE, target=NOWHERE, after=None, *, awaited=False):
    """Return a step of one chunk."""
    return Step(kind, source, target, 1, after, awaited)


def two_gpus(zero, one, *, in_place=False):
    """Return an algorithm for one chunk on two GPUs from their blocks."""
    gpus = tuple(Gpu(tuple(blocks), 1, 1, 2) for blocks in (zero, one))
    return Algorithm("t", "Simple", 1, gpus, in_place, not in_place, 0, 1)


def block(send, recv, *steps, channel=0):
    """Return a block of these steps."""
    return Block(send, recv, channel, steps)


IN, OUT, KEEP = Place("i", 0), Place("o", 0), Place("s", 0)
#: GPU 1 sends up, GPU 0 folds and sends down.
GOOD = (
    [block(-1, 1, step("rrc", IN, OUT, awaited=True)), block(1, -1, step("s", OUT, OUT, (0, 0)))],
    [block(0, -1, step("s", IN, OUT)), block(-1, 0, step("r", NOWHERE, OUT))],
)


@pytest.fixture(scope="module")
def text():
    """Return the file of a two-level tree on four GPUs."""
    return to_msccl(plan_two_level(one_array([f"gpu:{n}" for n in range(4)], length=2)))


class TestProveMsccl:
    @pytest.mark.parametrize("in_place", [True, False])
    def test_takes_what_is_right(self, in_place):
        """A tree of two GPUs, in place and not."""
        prove_msccl(two_gpus(*GOOD, in_place=in_place))

    def test_refuses_a_lost_contribution(self):
        """GPU 0 stores what arrives and forgets its own."""
        zero = [block(-1, 1, step("r", NOWHERE, OUT, awaited=True)), GOOD[0][1]]
        with pytest.raises(
            ExportError,
            match=r"^GPU 0 ends with chunk 0, GPUs \[0\] 0 times in chunk 0 of its output\. Every GPU's contribution "
            r"must be in it once\.$",
        ):
            prove_msccl(two_gpus(zero, GOOD[1]))

    def test_refuses_an_output_that_nobody_writes(self):
        """GPU 1 sends up and gets nothing back."""
        zero, one = [GOOD[0][0]], [GOOD[1][0]]
        with pytest.raises(ExportError, match=r"^GPU 1 ends with nothing in chunk 0 of its output\. "):
            prove_msccl(two_gpus(zero, one))

    def test_refuses_a_contribution_counted_twice(self):
        """GPU 0 adds the same arrival to a sum that has it."""
        zero = [
            block(-1, 1, step("rrc", IN, OUT), step("rrc", OUT, OUT, awaited=True)),
            block(1, -1, step("s", OUT, OUT, (0, 1))),
        ]
        one = [block(0, -1, step("s", IN, OUT), step("s", IN, OUT)), GOOD[1][1]]
        with pytest.raises(ExportError, match=r"^GPU 0 ends with chunk 0, GPUs \[1\] 2 times in chunk 0"):
            prove_msccl(two_gpus(zero, one))

    def test_refuses_two_uses_that_nothing_orders(self):
        """GPU 0 sends its sum without waiting for it: right if it is lucky, so it is refused."""
        zero = [GOOD[0][0], block(1, -1, step("cpy", IN, KEEP), step("s", OUT, OUT))]
        with pytest.raises(
            ExportError,
            match=r"^GPU 0, block [01], step [01] \(\w+\) (reads chunk 0 of buffer o on GPU 0, which nothing has "
            r"written\. Every chunk must be written before it is read\.|and GPU 0, block 1, step 1 \(s\) both use "
            r"chunk 0 of buffer o on GPU 0 and nothing orders them\. One must depend on the other\.)$",
        ):
            prove_msccl(two_gpus(zero, GOOD[1]))

    def test_refuses_to_read_what_nobody_wrote(self):
        """Scratch holds nothing of its own."""
        one = [block(0, -1, step("s", KEEP, OUT)), GOOD[1][1]]
        with pytest.raises(
            ExportError,
            match=r"^GPU 1, block 0, step 0 \(s\) reads chunk 0 of buffer s on GPU 1, which nothing has written\. "
            r"Every chunk must be written before it is read\.$",
        ):
            prove_msccl(two_gpus(GOOD[0], one))

    def test_refuses_to_overwrite_what_is_still_to_be_sent(self):
        """GPUs that exchange their values in place overwrite them as they arrive: no order is right."""
        both = [
            [block(1, -1, step("s", IN, OUT)), block(-1, 1, step("rrc", IN, OUT))],
            [block(0, -1, step("s", IN, OUT)), block(-1, 0, step("rrc", IN, OUT))],
        ]
        prove_msccl(two_gpus(*both))
        with pytest.raises(ExportError, match=r"both use chunk 0 of buffer i on GPU [01] and nothing orders them\."):
            prove_msccl(two_gpus(*both, in_place=True))

    def test_refuses_blocks_that_wait_for_each_other(self):
        """Both GPUs want to receive before they send."""
        both = [
            [block(peer, peer, step("r", NOWHERE, KEEP), step("s", IN, OUT), step("re", KEEP, OUT))] for peer in (1, 0)
        ]
        with pytest.raises(
            ExportError,
            match=r"^The algorithm comes to a stop: GPU 0, block 0, step 0 \(r\); GPU 1, block 0, step 0 \(r\)\. No "
            r"order of its steps can go on\.$",
        ):
            prove_msccl(two_gpus(*both))

    def test_refuses_to_add_chunks_that_do_not_belong_together(self):
        """Chunk 1 of one GPU and chunk 0 of the other."""
        one = [block(0, -1, step("s", Place("i", 1), OUT)), GOOD[1][1]]
        algorithm = two_gpus(GOOD[0], one)
        gpus = tuple(replace(gpu, input_chunks=2, output_chunks=2) for gpu in algorithm.gpus)
        with pytest.raises(
            ExportError,
            match=r"^GPU 0, block 0, step 0 \(rrc\) adds chunk 0 and chunk 1\. Only contributions to one chunk can be "
            r"added\.$",
        ):
            prove_msccl(replace(algorithm, chunks=2, gpus=gpus))

    def test_refuses_what_is_left_of_an_algorithm_without_any_of_its_waits(self):
        """Every wait that is written is needed: without it two uses are unordered, or a read comes too early."""
        plan = plan_two_level(one_array([f"gpu:{n}" for n in range(6)], length=1))
        algorithm = read_msccl(to_msccl(plan))
        waits = [
            (rank, number, index)
            for rank, gpu in enumerate(algorithm.gpus)
            for number, one in enumerate(gpu.blocks)
            for index, item in enumerate(one.steps)
            if item.after is not None
        ]
        assert waits
        for rank, number, index in waits:
            with pytest.raises(ExportError):
                prove_msccl(_without_wait(algorithm, rank, number, index))


def _without_wait(algorithm, rank, number, index):
    gpu = algorithm.gpus[rank]
    steps = list(gpu.blocks[number].steps)
    steps[index] = replace(steps[index], after=None)
    blocks = list(gpu.blocks)
    blocks[number] = replace(blocks[number], steps=tuple(steps))
    gpus = list(algorithm.gpus)
    gpus[rank] = replace(gpu, blocks=tuple(blocks))
    return replace(algorithm, gpus=tuple(gpus))


class TestReadMsccl:
    def test_refuses_what_is_cut_off(self, text):
        """A truncated file is one sentence."""
        with pytest.raises(
            ExportError,
            match=r"^The MSCCL file is broken or cut off: .*\. Write it again with treefold plan --msccl\.$",
        ):
            read_msccl(text[: len(text) // 2])

    def test_refuses_entities(self):
        """A bomb is no algorithm."""
        bomb = '<!DOCTYPE algo [<!ENTITY a "a">]><algo name="&a;"/>'
        with pytest.raises(ExportError, match=r"^The MSCCL file is broken or cut off: "):
            read_msccl(bomb)

    @pytest.mark.parametrize(
        ("old", "new", "sentence"),
        [
            ('coll="allreduce"', 'coll="gather"', "The algorithm has coll='gather'. It takes allreduce;"),
            ('proto="Simple"', 'proto="LL256"', "The algorithm has proto='LL256'. It takes Simple, LL or LL128;"),
            ('ngpus="2"', 'ngpus="3"', "The algorithm has gpu ids=[0, 1]. It takes 0 to 2, each once and in order;"),
            ('type="s"', 'type="x"', "GPU 0, block 1, step 0 has type='x'. It takes cpy, nop, r, rcs, re, rrc,"),
            ('srcbuf="i"', 'srcbuf="q"', "GPU 0, block 0, step 0 has srcbuf='q'. It takes i, o or s;"),
            ('cnt="1"', 'cnt="20"', "GPU 0, block 0, step 0 has srcoff=0. It takes chunks within the 1 of buffer i;"),
            ('cnt="1"', 'cnt=""', "GPU 0, block 0, step 0 has cnt=''. It takes a whole number from 0 to 1048576;"),
            ('cnt="1"', 'cnt="0"', "GPU 0, block 0, step 0 has cnt=0. It takes a number above 0;"),
            ('hasdep="1"', 'hasdep="0"', "has depid, deps=[0, 0]. It takes a step with hasdep=1;"),
            ('depid="0"', 'depid="9"', "has depid, deps=[9, 0]. It takes a step of a block of this GPU;"),
            ('chan="0"', 'chan="1"', "The algorithm has nchannels='1'. It takes at least 2;"),
            ('<tb id="0"', '<tb id="1"', "GPU 0 has tb ids=[1, 1]. It takes 0 to 1, each once;"),
            ('<step s="0"', '<step s="7"', "GPU 0, block 0 has s of its steps=[7]. It takes 0, 1, 2 … in order;"),
        ],
    )
    def test_names_what_is_wrong(self, old, new, sentence):
        """Each attribute that cannot be is named with what it may be."""
        text = write_msccl_xml(two_gpus(*GOOD))
        assert old in text
        with pytest.raises(ExportError, match=re.escape(sentence)):
            read_msccl(text.replace(old, new, 1))

    def test_refuses_a_gpu_that_sends_to_itself(self):
        """A peer is another GPU."""
        text = to_msccl(plan_star(one_array(["gpu:0", "gpu:1"], length=1)))
        with pytest.raises(ExportError, match=r"^GPU 0, block \d has (send|recv)=0\. It takes another GPU, or -1; "):
            read_msccl(re.sub(r'(<tb id="\d" send=")1', r"\g<1>0", text, count=1))

    def test_refuses_a_send_without_a_peer(self):
        """A block that sends names whom to."""
        text = to_msccl(plan_star(one_array(["gpu:0", "gpu:1"], length=1)))
        with pytest.raises(ExportError, match=r"has type='s'\. It takes what a block without a send peer can do; "):
            read_msccl(re.sub(r'(<tb id="\d" send=")1', r"\g<1>-1", text, count=1))

    def test_refuses_two_blocks_for_one_connection(self):
        """Which of them would get what arrives is left open."""
        text = to_msccl(plan_star(one_array(["gpu:0", "gpu:1"], length=1)))
        lines = text.splitlines()
        first = next(number for number, line in enumerate(lines) if 'send="1"' in line)
        twin = [lines[first].replace('id="1"', 'id="2"'), *lines[first + 1 : first + 3]]
        with pytest.raises(
            ExportError,
            match=r"^GPU 0 has send peer and channel=\(1, 1\)\. It takes each pair in one block; correct the file\.$",
        ):
            read_msccl("\n".join([*lines[: first + 3], *twin, *lines[first + 3 :]]))

    def test_refuses_more_text_than_any_algorithm_has(self, monkeypatch):
        """Megabytes are not parsed."""
        monkeypatch.setattr("treefold.export.msccl_xml._MAX_CHARACTERS", 10)
        with pytest.raises(
            ExportError,
            match=r"^The MSCCL file has 11 characters; at most 10 are read\. Write a smaller algorithm\.$",
        ):
            read_msccl("x" * 11)


class TestMutations:
    @settings(max_examples=CASES, deadline=None)
    @given(data=st.data())
    def test_of_the_text_are_refused_or_still_right(self, text, data):
        """Whatever one number becomes: one sentence, or an algorithm that is an all-reduce all the same."""
        numbers = list(re.finditer(r'(?<=")-?\d+(?=")', text))
        found = data.draw(st.sampled_from(numbers))
        other = data.draw(st.integers(-2, 70))
        mutated = f"{text[: found.start()]}{other}{text[found.end() :]}"
        sentence = _refusal(mutated)
        assert "\n" not in sentence
        if not sentence:
            algorithm = read_msccl(mutated)
            assert all(gpu.output_chunks >= algorithm.chunks or algorithm.in_place for gpu in algorithm.gpus)


def _refusal(text):
    """Return the sentence with which a text is refused; nothing if it holds."""
    try:
        prove_msccl(read_msccl(text))
    except ExportError as error:
        return str(error)
    return ""


class TestCheckLimits:
    def test_refuses_more_steps_than_a_block_takes(self):
        """Sixty-five steps in one block."""
        long = block(1, -1, *[step("s", IN, OUT)] * 65)
        with pytest.raises(
            ExportError,
            match=r"^The algorithm needs 65 steps in a thread block; RCCL and MSCCL take 64\. Plan fewer packs\.$",
        ):
            check_limits(two_gpus([long], []))
