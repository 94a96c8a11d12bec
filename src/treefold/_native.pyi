from collections.abc import Callable, Hashable, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Array: TypeAlias = npt.NDArray[Any]
_Item: TypeAlias = tuple[int, Sequence[_Array], Sequence[_Array]]

DTYPES: tuple[str, ...]
OPS: tuple[str, ...]
ACCUMULATIONS: tuple[str, ...]
CERTIFICATES: tuple[str, ...]

def fold(
    items: list[_Item],
    op: int,
    accumulate: int,
    level: int,
    weights: bytes | None = None,
    words_each: int = 1,
) -> None: ...
def exact_sum(
    dtype: int, terms: list[tuple[_Array, ...]], is_product: bool, level: int
) -> tuple[bytes, bool, bool, bool]: ...
def set_certificate(certificate: int) -> None: ...
def certificate(level: int) -> int: ...
def in_plain_arithmetic(function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
def traffic(items: list[_Item], level: int, task_bytes: int = 0, stream: bool | None = None) -> None: ...

class Row:
    @property
    def backend(self) -> Any: ...
    @property
    def arrays(self) -> tuple[Any, ...]: ...
    @property
    def views(self) -> tuple[_Array, ...] | None: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def key(self) -> tuple[Hashable, ...]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def addresses(self) -> tuple[int, ...]: ...

class RowFold:
    def __init__(self, dtypes: tuple[int, ...], op: int, accumulate: int, level: int) -> None: ...
    def fold(
        self, rows: list[Row], targets: list[Row], before: Callable[[list[Row]], object] | None = None
    ) -> bool: ...

def read_arrays(
    backend: Any, arrays: tuple[Any, ...], views: tuple[Any, ...], extra: Hashable = None
) -> Row | None: ...
def read_tensors(
    backend: Any,
    exchange: object,
    tensors: tuple[Any, ...],
    dtype: np.dtype[Any],
    extra: Hashable = None,
    methods: tuple[Callable[[Any], Any], ...] = (),
) -> Row | None: ...

class PartialArrays:
    def __init__(
        self,
        length: int,
        least_unit: int,
        modes: _Array,
        sums: _Array,
        rests: _Array | None,
        places: _Array,
        wholes: _Array,
    ) -> None: ...

def add_to_partial(
    partial: PartialArrays,
    starts: _Array,
    offsets: _Array,
    dtype: int,
    level: int,
    number: float,
    parts: Sequence[float],
    words: bytes,
    blocks: Sequence[int] | _Array | None,
) -> list[int]: ...
def merge_partials(
    partial: PartialArrays, other: PartialArrays, level: int, blocks: Sequence[int] | _Array | None
) -> list[int]: ...
def make_whole(partial: PartialArrays, blocks: Sequence[int] | _Array) -> None: ...
def finish_partial(
    partial: PartialArrays,
    starts: _Array,
    offsets: _Array,
    dtype: int,
    level: int,
    high: float,
    low: float,
    words: bytes,
    exponent: int,
) -> None: ...
def write_partial_message(
    starts: _Array,
    factors: list[tuple[float, tuple[float, ...], bytes]],
    dtype: int,
    level: int,
    length: int,
    message: _Array,
) -> None: ...
def fold_partial_messages(
    starts: _Array,
    factors: list[tuple[float, tuple[float, ...], bytes]],
    messages: list[_Array],
    dtype: int,
    level: int,
    length: int,
    result: int,
    high: float,
    low: float,
) -> list[int]: ...
def addresses_of(arrays: list[_Array]) -> _Array: ...

class LeafReader:
    def __init__(self, dtype: np.dtype[Any], code: int, shapes: Sequence[Sequence[int]]) -> None: ...
    def read(
        self,
        leaves: list[Any],
        types: tuple[type, ...],
        exchange: object | None,
        methods: tuple[Callable[[Any], Any], ...],
    ) -> _Array | None: ...

class GroupForm:
    def __init__(
        self,
        kind: bytes,
        description: str,
        leaves: Sequence[tuple[int, int]],
        op: int,
        accumulate: int,
        level: int,
        is_weighted: bool = False,
    ) -> None: ...
    @property
    def kind(self) -> bytes: ...
    @property
    def description(self) -> str: ...
    @property
    def stream_bytes(self) -> int: ...
    @property
    def result_bytes(self) -> int: ...
    @property
    def results_at(self) -> list[int]: ...

class GroupOutcome:
    @property
    def is_committed(self) -> bool: ...
    @property
    def phase(self) -> str: ...
    @property
    def cause(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def is_leased(self) -> bool: ...
    @property
    def is_unplanned(self) -> bool: ...
    @property
    def missing_bytes(self) -> int: ...
    @property
    def descriptions(self) -> list[str]: ...
    @property
    def blobs(self) -> list[bytes]: ...
    @property
    def descriptors(self) -> list[tuple[bytes, bool, int, bool, bool]]: ...
    def view(self, at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Array: ...

_Warn: TypeAlias = Callable[[list[int]], object] | None
_Piece: TypeAlias = tuple[int, int, int]

class HostGroup:
    def __init__(
        self,
        fd: int,
        rank: int,
        ranks: int,
        result_bytes: int,
        arena_bytes: int,
        peers: Sequence[tuple[int, int]],
        spins: bool,
    ) -> None: ...
    def fold(
        self,
        form: GroupForm,
        rows: list[Row],
        targets: Sequence[Row | None] | None,
        wants_lease: bool,
        weights: bytes,
        weight_words: int,
        plan: int,
        seconds: float,
        warn: _Warn,
        counts: Sequence[Sequence[int]] = (),
    ) -> GroupOutcome | None: ...
    def place(
        self,
        kind: bytes,
        result_bytes: int,
        sources: list[_Piece],
        targets: list[_Piece],
        wants_lease: bool,
        description: str,
        seconds: float,
        warn: _Warn,
    ) -> GroupOutcome: ...
    def agree(
        self, kind: bytes, blob: bytes, description: str, is_refused: bool, seconds: float, warn: _Warn
    ) -> GroupOutcome: ...
    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> _Array: ...
    def leave(self, cause: str) -> None: ...
    def retire_leases(self) -> None: ...
    @property
    def sequence(self) -> int: ...

HAS_SHARED_MEMORY: bool
SMALL_BYTES: int
MOST_RANKS: int
MOST_REPLICAS: int
BLOB_BYTES: int

def create_segment(ranks: int, result_bytes: int, arena_bytes: int) -> int: ...
def group_protocol() -> dict[str, Any]: ...
def set_stage_hook(hook: Callable[[str, str, int, int], object] | None) -> None: ...
def new_arrays(backend: Any, like: Row, dtype: np.dtype[Any], count: int) -> Row: ...
def new_tensors(backend: Any, like: Row, dtype: np.dtype[Any], count: int, exchange: object, code: int) -> Row: ...
def level_names() -> tuple[str, ...]: ...
def set_num_threads(count: int, /) -> None: ...
def num_threads() -> int: ...
def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Array: ...
def memory_info() -> dict[str, int]: ...
def set_memory_limit(nbytes: int, /) -> None: ...
def empty_cache() -> None: ...

TENSORFLOW_FUNCTIONS: tuple[str, ...]

def register_fold(addresses: Sequence[int | None], level: int) -> None: ...
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
