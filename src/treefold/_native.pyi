from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_Array: TypeAlias = npt.NDArray[Any]
_Item: TypeAlias = tuple[int, Sequence[_Array], Sequence[_Array]]

def fold(
    items: list[_Item],
    op: int,
    accumulate: int,
    level: int,
    weights: Sequence[float] | None = None,
    weight_sum: float = 0.0,
) -> None: ...
def traffic(items: list[_Item], level: int) -> None: ...
def agree(arrays: tuple[_Array, ...]) -> bool: ...
def may_fold_in_place(leaves: Sequence[Sequence[_Array]]) -> bool: ...
def level_names() -> tuple[str, ...]: ...
def set_num_threads(count: int, /) -> None: ...
def num_threads() -> int: ...
def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Array: ...
def memory_info() -> dict[str, int]: ...
def set_memory_limit(nbytes: int, /) -> None: ...
def empty_cache() -> None: ...
def run_pipeline(
    task: npt.NDArray[np.int32],
    nbytes: npt.NDArray[np.float64],
    alpha_s: npt.NDArray[np.float64],
    resource_start: npt.NDArray[np.int32],
    resources: npt.NDArray[np.int32],
    need_start: npt.NDArray[np.int32],
    need_task: npt.NDArray[np.int32],
    need_counts: npt.NDArray[np.int32],
    capacities: npt.NDArray[np.float64],
    starts: npt.NDArray[np.float64],
    stops: npt.NDArray[np.float64],
) -> None: ...
