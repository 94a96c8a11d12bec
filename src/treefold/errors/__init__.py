"""Every error that treefold raises on purpose.

>>> import treefold
>>> try:
...     treefold.all_reduce([{"bias": 1.0}, {"kernel": 2.0}])
... except treefold.errors.MismatchError as error:
...     print(error)
Replica 1 has nothing at ['bias'] where replica 0 has a value. Every replica must bring the same structure.

::

    TreefoldError
    ├── ArgumentError                ValueError           an argument is outside what it may be
    │   ├── KerasError                                    a use of Keras on many processes that is not supported
    │   └── ProcessGroupError                             a call of torch.distributed that is not supported
    ├── CallError                    TypeError            arguments that exclude each other, a class for an object
    ├── CommandError                 ValueError           a command was called with something that it cannot do
    │   ├── BenchError                                    a benchmark was asked for something that it cannot do
    │   └── CheckpointError                               a file that cannot be averaged, files that do not match
    │       ├── AverageOptionError                        options of an average that exclude each other
    │       └── CheckpointFormatError                     a checkpoint of a format or content that is not averaged
    ├── ComponentError               IndexError           a component that distributed values do not have
    ├── ConformanceError             AssertionError       a backend or channel that does not do what the interface says
    ├── DeviceError                  ValueError           a device that does not parse, does not exist, is elsewhere
    ├── DtypeError                   ValueError           a dtype that the op has no meaning for
    ├── FakeOutOfMemoryError         MemoryError          a fake device that was told to fail has failed
    ├── FrameworkError               ImportError          a framework that is not installed, or too old
    ├── GpuError                     RuntimeError         a reduction on GPUs that cannot start or did not end
    ├── GroupError                   RuntimeError         a group of processes that is closed, forked or in use
    │   ├── CallMismatchError        ValueError           ranks that make different calls, a rank that refuses its own
    │   ├── ConnectError             ConnectionError      processes that do not find each other or do not fit together
    │   ├── DeadlineError            TimeoutError         a rank that did not come in time
    │   ├── PeerLostError            ConnectionError      a rank that has ended, left or was interrupted
    │   ├── SharedMemoryError        MemoryError          no shared memory: none of this kind, none left, none allowed
    ├── InstallationError            ImportError          a native core built from other sources, a sub-interpreter
    ├── MismatchError                ValueError           replicas disagree: structure, shape, dtype, sparsity …
    │   └── ReplicaMismatchError     tf.errors.OpError    the same, as TensorFlow raises it; in treefold.tensorflow
    ├── MissingExtraError            ImportError          a call that needs a package which is not installed
    ├── MissingImplementationError   NotImplementedError  a subclass without a method that a call needs
    ├── NotFiniteError               RuntimeError         a norm of gradients that had to be finite and is not
    ├── NotReproducibleError         AssertionError       a training whose bits depend on its ranks
    ├── OutputError                  ValueError           ``out`` cannot take the result
    ├── ParseError                   ValueError           text or a file that should describe a machine and does not
    ├── PeerError                    RuntimeError         a library that cannot do the work of a benchmark
    ├── PlanError                    ValueError           a plan that fails its proof, or text that is no plan
    ├── SimulationError              ValueError           a plan without a predicted time, useless measurements
    ├── TopologyError                ValueError           an impossible machine, a name that no known machine has
    └── UnknownNameError             AttributeError       a name that the package does not have

Mistakes of a caller are ``ValueError``, as TensorFlow documents for the same mistakes. A message says what was got,
what is allowed, and what to do. A message that is raised in one place stands there; one that is raised in several is a
classmethod of its class.
"""

from treefold.errors.arguments import (
    ArgumentError,
    CallError,
    KerasError,
    MissingImplementationError,
    ProcessGroupError,
)
from treefold.errors.base import (
    ComponentError,
    ConformanceError,
    FakeOutOfMemoryError,
    FrameworkError,
    GpuError,
    InstallationError,
    MissingExtraError,
    TreefoldError,
    UnknownNameError,
)
from treefold.errors.commands import (
    AverageOptionError,
    BenchError,
    CheckpointError,
    CheckpointFormatError,
    CommandError,
    PeerError,
)
from treefold.errors.groups import (
    CallMismatchError,
    ConnectError,
    DeadlineError,
    GroupError,
    PeerLostError,
    SharedMemoryError,
)
from treefold.errors.machines import ParseError, SimulationError, TopologyError
from treefold.errors.values import (
    DeviceError,
    DtypeError,
    MismatchError,
    NotFiniteError,
    NotReproducibleError,
    OutputError,
    PlanError,
)

__all__ = [
    "ArgumentError",
    "AverageOptionError",
    "BenchError",
    "CallError",
    "CallMismatchError",
    "CheckpointError",
    "CheckpointFormatError",
    "CommandError",
    "ComponentError",
    "ConformanceError",
    "ConnectError",
    "DeadlineError",
    "DeviceError",
    "DtypeError",
    "FakeOutOfMemoryError",
    "FrameworkError",
    "GpuError",
    "GroupError",
    "InstallationError",
    "KerasError",
    "MismatchError",
    "MissingExtraError",
    "MissingImplementationError",
    "NotFiniteError",
    "NotReproducibleError",
    "OutputError",
    "ParseError",
    "PeerError",
    "PeerLostError",
    "PlanError",
    "ProcessGroupError",
    "SharedMemoryError",
    "SimulationError",
    "TopologyError",
    "TreefoldError",
    "UnknownNameError",
]


def __dir__() -> list[str]:
    return __all__
