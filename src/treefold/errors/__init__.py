"""Every error that treefold raises on purpose.

::

    TreefoldError
    ├── ArgumentError      ValueError   an argument is outside what it may be
    ├── CallError          TypeError    arguments that do not go together, a class where an object is meant
    ├── DeviceError        ValueError   a device that does not parse, does not exist, or is elsewhere
    ├── FrameworkError     ImportError  a part of treefold plugs into a framework that is not installed, or too old
    ├── InstallationError  ImportError  the native core was built from other sources
    ├── MissingExtraError  ImportError  what was asked for needs a package that is not installed
    ├── MismatchError      ValueError   replicas disagree: structure, shape, dtype, framework, sparsity
    ├── DtypeError         ValueError   a dtype that the op has no meaning for
    ├── OutputError        ValueError   ``out`` cannot take the result
    ├── PlanError          ValueError   a plan that fails its proof, or text that is no plan
    ├── ParseError         ValueError   text or a file that should describe a machine and does not
    ├── SimulationError    ValueError   a plan and a machine that do not go together, measurements that say nothing
    └── TopologyError      ValueError   a machine that cannot be, or a name that no known machine has

All but ``CallError`` and what is an ``ImportError`` are ``ValueError``, as TensorFlow's documentation says of the same
mistakes. A message says what was got, what is allowed, and what to do; the classmethods of these classes are the only
places where the sentences are written.
"""

from treefold.errors.arguments import ArgumentError, CallError
from treefold.errors.base import TreefoldError
from treefold.errors.cost import SimulationError
from treefold.errors.devices import DeviceError
from treefold.errors.extras import InstallationError, MissingExtraError
from treefold.errors.frameworks import FrameworkError
from treefold.errors.parsing import ParseError
from treefold.errors.plans import PlanError
from treefold.errors.topology import TopologyError
from treefold.errors.values import DtypeError, MismatchError, OutputError

__all__ = [
    "ArgumentError",
    "CallError",
    "DeviceError",
    "DtypeError",
    "FrameworkError",
    "InstallationError",
    "MismatchError",
    "MissingExtraError",
    "OutputError",
    "ParseError",
    "PlanError",
    "SimulationError",
    "TopologyError",
    "TreefoldError",
]
