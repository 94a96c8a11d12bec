"""Errors of arguments other than the values, and of calls that a framework makes of treefold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import counted, listed, short

_VALUE_FORMS = (
    "A value is a PerReplica of arrays or of pytrees of arrays, or one array or IndexedSlices. "
    "A framework counts once it is imported."
)
_DESTINATION_FORMS = (
    "It takes a device (a name, or an object such as torch.device), a sequence of devices, an array, an IndexedSlices, "
    "or any DistributedValues (whose devices are meant)."
)
#: The allowed values of options, as words of a message.
_ALLOWED = {
    "accumulate": '"exact" (the default) or "native"',
    "accumulation_fn": "a function of the list of arrays, or None",
    "bytes_per_pack": "a whole number of bytes; 0 leaves packing to num_packs",
    "nbytes": "the bytes that each replica brings: a whole number, 1 or more",
    "ops": "an ops object of treefold, such as treefold.HierarchicalCopyAllReduce(), or None for a subclass that "
    "reduces by itself",
    "options": "a CommunicationOptions, or None",
    "timeout_seconds": "a number of seconds above 0, or None for no limit",
    "topology": 'a treefold.Topology, the name of a known machine such as "dgx1_v100", the path of a topology file, '
    "or None",
    "value_destination_pairs": "a sequence of (value, destinations) tuples",
    "weights": "a list, tuple or one-dimensional array of one finite number ≥ 0 per replica, not all of them 0",
}
#: The advice where ranks make different numbers of steps.
_WHOLE_BATCHES = "x[: batch * treefold.keras.steps(group, len(x) // batch)] for arrays, dataset.take(...) for tf.data"


class ArgumentError(TreefoldError, ValueError):
    """An argument is outside what it may be."""

    @classmethod
    def option(cls, **option: object) -> Self:
        """Refuse the value of one of the options in the table above."""
        [(name, value)] = option.items()
        return cls(f"{name} is {short(value)}. It takes {_ALLOWED[name]}.")

    @classmethod
    def choice(cls, choices: Sequence[str], **option: object) -> Self:
        [(name, value)] = option.items()
        return cls(f"{name} is {short(value)}. It takes {listed(choices)}.")

    @classmethod
    def num_packs(cls, owner: str, value: object) -> Self:
        return cls(
            f"{owner} got num_packs={short(value)}. It takes 0 (no packing), a positive whole number of packs, "
            f'or "auto" (one pack per device).'
        )

    @classmethod
    def num_threads(cls, value: object) -> Self:
        return cls(f"The number of threads is {short(value)}. It takes a whole number, 1 or more.")

    @classmethod
    def setting(cls, value: str, allowed: str, *, name: str) -> Self:
        return cls(f"{name} is {short(value)} in the environment. It takes {allowed}; unset it for the default.")

    @classmethod
    def connect(cls, allowed: str, caller: str = "connect", **given: object) -> Self:
        [(name, value)] = given.items()
        return cls(f"{caller}() got {name}={short(value)}. It takes {allowed}.")

    @classmethod
    def root(cls, root: object, size: int) -> Self:
        return cls(f"root is {short(root)}. This group has ranks 0 to {size - 1}.")

    @classmethod
    def traced(cls, call: str) -> Self:
        """Refuse a call of a group in a graph that is being traced."""
        return cls(f"{call} cannot be traced into a graph. Call it outside of the traced function.")

    @classmethod
    def accumulation_result(cls, where: str, got: str, expected: str) -> Self:
        return cls(f"accumulation_fn returned {got}{where}. It must return one {expected}, like each array it got.")

    @classmethod
    def not_honoured(cls, owner: str, **option: object) -> Self:
        """Refuse an option that the plan's executor does not support."""
        [(name, value)] = option.items()
        words = value if isinstance(value, str) else short(value)
        return cls(f"{name}={words} cannot be honoured by {owner}. Leave {name} out.")

    @classmethod
    def weight_count(cls, num_weights: int, num_replicas: int) -> Self:
        numbers, replicas = counted(num_weights, "number"), counted(num_replicas, "replica")
        return cls(f"weights has {numbers} for {replicas}. Give one for each replica.")

    @classmethod
    def bare_structure(cls, value: object, what: str) -> Self:
        return cls(
            f"{what} is a {type(value).__name__}, which may mean one value per replica or one structure. "
            f"Say which: PerReplica([replica_0, replica_1, ...]), where each may be such a structure."
        )

    @classmethod
    def not_a_value(cls, value: object, what: str) -> Self:
        return cls(f"{what} is {short(value)}, which is no array of a loaded framework. {_VALUE_FORMS}")

    @classmethod
    def shape(cls, value: object) -> Self:
        return cls(f"A shape is {short(value)}. It takes a tuple of whole numbers, 0 or more, one for each axis.")

    @classmethod
    def unsupported_array(cls, owner: str, where: str, got: str, advice: str) -> Self:
        """Refuse an array that its framework's backend cannot read as it is."""
        return cls(f"{owner} has {got}{where}. {advice}")

    @classmethod
    def several_values(cls, value: object) -> Self:
        return cls(f"broadcast got {short(value)}. It takes one value; pick a component, such as values[0].")

    @classmethod
    def no_replicas(cls, owner: str) -> Self:
        return cls(f"{owner} got no values. It takes one value per replica, at least one.")

    @classmethod
    def not_components(cls, owner: str, value: object) -> Self:
        return cls(f"{owner} got {short(value)}. It takes a list or tuple with one value per replica.")

    @classmethod
    def device_count(cls, owner: str, num_values: int, num_devices: int) -> Self:
        values, devices = counted(num_values, "value"), counted(num_devices, "device")
        return cls(f"{owner} got {values} and {devices}. Name one device for each value.")

    @classmethod
    def destinations(cls, value: object) -> Self:
        return cls(f"The destination is {short(value)}. {_DESTINATION_FORMS}")

    @classmethod
    def no_destinations(cls) -> Self:
        return cls(f"The destination is empty. {_DESTINATION_FORMS}")

    @classmethod
    def slices(cls, replica: int, where: str, got: str, allowed: str) -> Self:
        """Refuse ``IndexedSlices`` with parts that do not fit each other."""
        return cls(f"Replica {replica} has IndexedSlices with {got}{where}. {allowed}")

    @classmethod
    def gather_sparse(cls, where: str) -> Self:
        return cls(f"gather takes arrays and got IndexedSlices{where}. Gather its values and indices by themselves.")

    @classmethod
    def gather_axis(cls, axis: object, where: str, rank: int | None = None) -> Self:
        allowed = "a whole number"
        if rank is not None:
            allowed = f"{-rank} to {rank - 1} for arrays of {counted(rank, 'axis', 'axes')}"
        return cls(f"gather got axis={short(axis)}{where}. It takes {allowed}.")

    @classmethod
    def unequal_parts(
        cls, shape: tuple[int, ...], axis: object, count: int, collective: str = "reduce_scatter"
    ) -> Self:
        """Refuse an array that cannot be cut into one part for each rank."""
        return cls(
            f"{collective} cannot cut an array of shape {shape} along axis {short(axis)} into {count} equal parts. "
            f"It takes one of the array's axes, of a length that {count} divides; pad the array, or name another axis."
        )

    @classmethod
    def torch_device(cls, device: object) -> Self:
        return cls(f'A device is {short(device)}. It takes a torch.device, a name such as "cuda:1", or a CUDA index.')

    @classmethod
    def models(cls, got: object) -> Self:
        return cls(
            f"average_models got {short(got)}. It takes a list of torch.nn.Module, or a list of their state_dict()s."
        )

    @classmethod
    def trees(cls, got: object) -> Self:
        return cls(f"average got {short(got)}. It takes a list of trees of arrays, one per model.")

    @classmethod
    def partial_state(cls, name: str, got: str, expected: str) -> Self:
        """Refuse the saved state of a sum, or a part of it."""
        return cls(f"{name} is {got}, and {expected} is meant. Nothing was loaded.")

    @classmethod
    def flags(cls, name: str) -> Self:
        return cls(
            f"The models do not agree on {name or 'their value'}, which has no mean: it is no number. "
            f"Make it equal in all models, or leave it out."
        )


class CallError(TreefoldError, TypeError):
    """Arguments exclude each other."""

    @classmethod
    def both_option_names(cls) -> Self:
        return cls("options and experimental_hints are two names of one argument. Give one of them.")

    @classmethod
    def no_gradient(cls) -> Self:
        return cls(
            "treefold's reductions have no gradient. Reduce outside of the tape, or call all_reduce of the replica "
            "context, whose gradient TensorFlow knows."
        )


class MissingImplementationError(TreefoldError, NotImplementedError):
    """A subclass lacks a method that a call needs."""

    @classmethod
    def method(cls, owner: str, name: str) -> Self:
        return cls(
            f"{owner} has no ops and no {name}. Define {name}, or hand ops of treefold to CrossDeviceOps.__init__."
        )


def unequal_samples(least: float, most: float) -> str:
    """Return a warning: in the same steps, ranks had batches of different sizes."""
    return (
        f"In this epoch one rank has trained on {least:.0f} samples and another on {most:.0f}, in as many steps. A "
        f"mean of the means of unequal batches is wrong. Give all ranks whole batches: {_WHOLE_BATCHES}."
    )


def place_in_fit(place: str) -> str:
    """Return a note for the error of calls that differ: the part of ``fit`` that this rank was in."""
    return (
        f"This rank was {place}. In fit all ranks make the same steps, and have the same callbacks. "
        f"Give them as many whole batches: {_WHOLE_BATCHES}."
    )


class KerasError(ArgumentError):
    """A use of Keras on many processes that ``treefold.keras`` does not support."""

    @classmethod
    def array(cls, shape: Sequence[int]) -> Self:
        """Refuse samples in the place of the number of batches."""
        return cls(
            f"steps got an array of shape {tuple(shape)}, and counts batches. "
            f"Pass len(x) // batch, and train on x[: batch * steps(...)]."
        )

    @classmethod
    def unknown_length(cls) -> Self:
        return cls(
            "steps got a dataset of unknown or infinite length. Pass the number of batches that this rank has in an "
            "epoch."
        )

    @classmethod
    def unequal_batches(cls, *, is_loader: bool) -> Self:
        """Refuse a dataset of tf.data, or a loader of PyTorch's, with a last batch that may be smaller."""
        advice = "DataLoader(..., drop_last=True)" if is_loader else "dataset.batch(n, drop_remainder=True)"
        return cls(
            f"The last batch of this dataset may be smaller, and a mean of the means of unequal batches is wrong. "
            f"Drop it: {advice}."
        )


class ProcessGroupError(ArgumentError):
    """A call of ``torch.distributed`` that the backend ``"treefold"`` does not support."""

    @classmethod
    def op(cls, op: str, choices: Sequence[str]) -> Self:
        """Refuse an op of PyTorch's process groups that treefold does not have."""
        return cls(f'PyTorch\'s backend "treefold" got ReduceOp.{op}. It takes {listed(choices, quote=False)}.')

    @classmethod
    def mean(cls, dtypes: Sequence[str]) -> Self:
        """Refuse a mean of booleans, or one call with means of whole numbers and of other dtypes."""
        return cls(
            f"ReduceOp.AVG got {listed(dtypes, quote=False)}. It takes floating-point and complex tensors, or whole "
            "numbers of 8 to 64 bits, not both in one call. Convert the tensor first."
        )

    @classmethod
    def arguments(cls, call: str, given: Sequence[str], choices: Sequence[str]) -> Self:
        """Refuse arguments that a method of a process group does not have."""
        return cls(f"After its tensors {call} got {', '.join(given)}. It takes {listed(choices, quote=False)} there.")

    @classmethod
    def shared(cls) -> Self:
        """Refuse tensors of one call that share memory."""
        return cls(
            "Some tensors of this call share memory, and would be reduced twice. Tensors that are reduced in place "
            "share memory with no other; copy one of them. Nothing was written."
        )

    @classmethod
    def no_memory(cls) -> Self:
        """Refuse a tensor for which PyTorch has allocated nothing."""
        return cls(
            "A tensor has no memory of its own: a transform of torch.func stands for it, or it is to be written and "
            "PyTorch has allocated nothing for its zeros. Call where it has memory, and give a copy of such zeros: "
            "tensor.clone()."
        )

    @classmethod
    def exchange(cls, size: int) -> Self:
        """Refuse tensors of an all-to-all that are not one for each rank, of one dtype."""
        return cls(f"all_to_all takes {size} tensors to send and {size} to write, one for each rank, all of one dtype.")
