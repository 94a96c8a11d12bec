import numpy as np
import pytest

from treefold._native import run_pipeline


def arguments(**changes):
    """Return what two lanes of two tasks need, the second after the first, two chunks each, on one resource."""
    times = np.full((2, 2, 2), np.nan)
    given = {
        "task": np.array([0, 1], np.int32),
        "nbytes": np.array([4.0, 2.0]),
        "alpha_s": np.array([1.0, 0.0]),
        "resource_start": np.array([0, 1, 2], np.int32),
        "resources": np.array([0, 0], np.int32),
        "need_start": np.array([0, 0, 1], np.int32),
        "need_task": np.array([0], np.int32),
        "need_counts": np.array([[1, 2]], np.int32),
        "capacities": np.array([2.0]),
        "starts": times[0],
        "stops": times[1],
    }
    return given | changes


class TestRunPipeline:
    def test_fills_in_when_chunks_start_and_stop(self):
        """4 bytes at 2 per second after 1 s of latency; then 2 bytes beside the next latency, and 2 at the end."""
        given = arguments()
        run_pipeline(**given)
        assert given["starts"].tolist() == [[0, 3], [3, 6]]
        assert given["stops"].tolist() == [[3, 6], [4, 7]]

    def test_leaves_what_never_happens(self):
        given = arguments(need_counts=np.array([[3, 3]], np.int32))
        run_pipeline(**given)
        assert np.isnan(given["starts"][1]).all()
        assert given["stops"][0].tolist() == [3, 6]

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"nbytes": np.zeros(3)}, "arrays that disagree in the number of lanes or chunks"),
            ({"stops": np.zeros((2, 3))}, "arrays that disagree in the number of lanes or chunks"),
            ({"need_start": np.zeros(0, np.int32)}, "arrays that disagree in the number of lanes or chunks"),
            ({"resource_start": np.array([0, 2, 1], np.int32)}, "ranges that do not fit the arrays they cut"),
            ({"resource_start": np.array([0, 1, 3], np.int32)}, "ranges that do not fit the arrays they cut"),
            ({"need_counts": np.zeros((1, 3), np.int32)}, "ranges that do not fit the arrays they cut"),
            ({"task": np.array([0, 2], np.int32)}, "an index of something that is not there"),
            ({"resources": np.array([0, -1], np.int32)}, "an index of something that is not there"),
            ({"capacities": np.array([0.0])}, "a resource of no capacity"),
        ],
    )
    def test_refuses_what_would_read_elsewhere(self, changes, sentence):
        with pytest.raises(ValueError, match=rf"^run_pipeline got {sentence}\.$"):
            run_pipeline(**arguments(**changes))
