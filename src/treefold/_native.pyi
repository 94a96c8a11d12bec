import numpy as np
import numpy.typing as npt

def fold_sum(
    sources: list[npt.NDArray[np.float32]],
    targets: list[npt.NDArray[np.float32]],
    divisor: float = 1.0,
) -> None: ...
