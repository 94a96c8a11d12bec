"""Errors of arguments other than the values."""

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
#: The values that options take, for one sentence.
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


class ArgumentError(TreefoldError, ValueError):
    """An argument is outside what it may be."""

    @classmethod
    def option(cls, **option: object) -> Self:
        """Refuse the value of one of the options above."""
        [(name, value)] = option.items()
        return cls(f"{name} is {short(value)}. It takes {_ALLOWED[name]}.")

    @classmethod
    def choice(cls, choices: Sequence[str], **option: object) -> Self:
        [(name, value)] = option.items()
        return cls(f"{name} is {short(value)}. It takes {listed(choices)}.")

    @classmethod
    def unknown_reduce_op(cls, value: object, choices: Sequence[str]) -> Self:
        return cls(f"The reduce op is {short(value)}. It takes {listed(choices)}, or a ReduceOp.")

    @classmethod
    def device_for_op(cls, device: str) -> Self:
        name = short(device)
        return cls(
            f"{name} names a device, and a reduce op is meant. Write treefold.reduce(values, 'sum', to={name}), "
            f"or ops.reduce('sum', value, {name})."
        )

    @classmethod
    def num_packs(cls, owner: str, value: object) -> Self:
        return cls(
            f"{owner} got num_packs={short(value)}. It takes 0 (no packing), a positive whole number of packs, "
            f'or "auto" (one pack per device).'
        )

    @classmethod
    def small_gradient_limit(cls, owner: str, name: str, value: object) -> Self:
        return cls(f"{owner} got {name}={short(value)}. It takes a whole number, 0 or more; 0 turns grouping off.")

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
    def replicas_of_rank(cls, count: int, most: int) -> Self:
        """A rank of a group brings more replicas to a reduction than there is room for."""
        return cls(f"This rank brings {count} replicas. In a group, a rank brings {most} at most; reduce them first.")

    @classmethod
    def replica_counts(cls, counts: Sequence[int]) -> Self:
        """A batch of a group that is traced into a graph, with values of other numbers of replicas."""
        return cls(
            f"The values of this batch have {', '.join(map(str, counts))} replicas on this rank. In a traced graph, "
            "all values that a group reduces in one batch have as many; reduce the others in another call."
        )

    @classmethod
    def fixed_shapes(cls) -> Self:
        """A call of a group in a program of JAX, of whose results the lengths are those of other ranks."""
        return cls(
            "A gather, a scatter or sparse rows have lengths that other ranks decide, and JAX's programs have fixed "
            "shapes. Call it outside of jit; all_reduce, reduce and broadcast may stand inside."
        )

    @classmethod
    def traced(cls, call: str) -> Self:
        """A call of a group that cannot stand in a graph that is being traced."""
        return cls(f"{call} cannot be traced into a graph. Call it outside of the traced function.")

    @classmethod
    def unequal_lengths(cls, collective: str, lengths: object, length: int, count: int) -> Self:
        """Lengths by which an array is to be cut are not as they must be."""
        return cls(
            f"{collective} got lengths={short(lengths)}. It takes {count} whole numbers, 0 or more, one for each rank, "
            f"whose sum is the length of the axis, {length} here."
        )

    @classmethod
    def store_of_ranks(cls, **given: object) -> Self:
        """``connect`` got some of store, rank and size, or a source beside them."""
        missing = listed([name for name, value in given.items() if value is None], quote=False)
        return cls(
            f"connect() got {f'no {missing}' if missing else 'a source beside a store'}. Give store=, rank= and size= "
            "together, without a source."
        )

    @classmethod
    def rank_of_store(cls, rank: object, size: object) -> Self:
        """A rank or a number of ranks that there cannot be."""
        return cls(
            f"connect() got rank={short(rank)} and size={short(size)}. It takes whole numbers: a size of 1 or more, "
            "and a rank from 0 to size - 1."
        )

    @classmethod
    def callback_in_group(cls) -> Self:
        return cls("accumulation_fn does not go with group=. Leave it out, or reduce in this process, without a group.")

    @classmethod
    def sparse_weights(cls, where: str) -> Self:
        return cls(
            f"weights do not go with IndexedSlices{where}: their rows are laid behind each other, and none is added. "
            "Multiply each replica's rows by its share first, or make one of the values dense."
        )

    @classmethod
    def no_topology(cls, owner: str) -> Self:
        return cls(
            f"{owner} does not follow a topology: it reduces each pack on one device. Leave topology out, or use "
            f"HierarchicalCopyAllReduce(topology=...)."
        )

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
    def weights_of_op(cls, op: str) -> Self:
        return cls(f"weights goes with MEAN and the op is {op}. Leave weights out, or multiply the values yourself.")

    @classmethod
    def weights_with_callback(cls) -> Self:
        return cls("weights and accumulation_fn both say how to combine. Leave one of them out.")

    @classmethod
    def long_weights(cls, bits: int, most: int) -> Self:
        return cls(
            f"weights, as whole numbers in their ratio, have up to {bits:,} bits, and {most:,} are taken. Round them,"
            " or leave out those that count for nothing."
        )

    @classmethod
    def inexact_weight(cls, weight: object) -> Self:
        return cls(
            f"weights has a {type(weight).__name__}, which does not tell its exact value. A weight is a whole number, a"
            " float, a Fraction or a Decimal. Multiply the weights until they are whole numbers."
        )

    @classmethod
    def wide_accumulation(cls) -> Self:
        return cls(
            'accumulate="wide" is gone: sums and means are exact now, and rounded once. Leave accumulate out, or take'
            ' "native", which rounds every addition.'
        )

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
    def several_tensors(cls, value: object, what: str) -> Self:
        """Refuse what TensorFlow makes of several tensors, such as a sparse tensor."""
        return cls(
            f"{what} is {short(value)}, which is made of several tensors. It takes tensors and IndexedSlices: make it "
            f"dense, or reduce its tensors by themselves where they agree in shape."
        )

    @classmethod
    def shape(cls, value: object) -> Self:
        return cls(f"A shape is {short(value)}. It takes a tuple of whole numbers, 0 or more, one for each axis.")

    @classmethod
    def too_deep(cls, most: int) -> Self:
        return cls(
            f"A value is nested more than {most} levels deep, or contains itself. Bring its arrays in a list or dict."
        )

    @classmethod
    def static_data(cls) -> Self:
        return cls(
            "Two structures cannot be compared, because == of the static data of a pytree class does not give a bool. "
            "Bring arrays as children of their class, not as static data."
        )

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
    def device_names(cls, owner: str, value: object) -> Self:
        return cls(f"{owner} got devices={short(value)}. It takes a list or tuple of device names, one for each value.")

    @classmethod
    def device_count(cls, owner: str, num_values: int, num_devices: int) -> Self:
        values, devices = counted(num_values, "value"), counted(num_devices, "device")
        return cls(f"{owner} got {values} and {devices}. Name one device for each value.")

    @classmethod
    def not_a_pair(cls, index: int, value: object) -> Self:
        length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        return cls(
            f"Element {index} of value_destination_pairs is a {type(value).__name__}{length}. "
            f"Each must be a tuple of two: (value, destinations)."
        )

    @classmethod
    def destinations(cls, value: object) -> Self:
        return cls(f"The destination is {short(value)}. {_DESTINATION_FORMS}")

    @classmethod
    def no_destinations(cls) -> Self:
        return cls(f"The destination is empty. {_DESTINATION_FORMS}")

    @classmethod
    def slices_indices(cls, replica: int, where: str, dtype: str, shape: tuple[int, ...]) -> Self:
        got = f"IndexedSlices with indices {dtype} {shape}"
        return cls(f"Replica {replica} has {got}{where}. Indices must be int32 or int64, of one axis.")

    @classmethod
    def slices_rows(cls, replica: int, where: str, shape: tuple[int, ...], count: int) -> Self:
        got = f"IndexedSlices with values {shape} for {counted(count, 'index', 'indices')}"
        return cls(f"Replica {replica} has {got}{where}. Bring one row of values for each index.")

    @classmethod
    def slices_shape(cls, replica: int, where: str, shape: tuple[int, ...], dense: tuple[int, ...]) -> Self:
        got = f"IndexedSlices with values {shape} for dense_shape {dense}"
        return cls(f"Replica {replica} has {got}{where}. All axes but the first must agree.")

    @classmethod
    def slices_bounds(cls, replica: int, where: str, low: int, high: int, length: int) -> Self:
        got = f"IndexedSlices with indices from {low} to {high}"
        return cls(f"Replica {replica} has {got}{where}. Its dense_shape allows 0 to {length - 1}.")

    @classmethod
    def traced_bounds(cls, index: int, length: int) -> Self:
        """Refuse an index that a graph has computed."""
        return cls(f"An IndexedSlices has index {index}. Its dense_shape allows 0 to {length - 1}.")

    @classmethod
    def sparse_op(cls, op: str, where: str) -> Self:
        return cls(f"{op} of IndexedSlices{where} is not defined. Rows take SUM or MEAN; make them dense for {op}.")

    @classmethod
    def gather_sparse(cls, where: str) -> Self:
        return cls(f"gather takes arrays and got IndexedSlices{where}. Gather its values and indices by themselves.")

    @classmethod
    def gather_scalar(cls, where: str) -> Self:
        return cls(f"gather got scalars{where}, which have no axis to lie along. Reshape each to (1,).")

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
        """An array cannot be cut into one part for each rank."""
        return cls(
            f"{collective} cannot cut an array of shape {shape} along axis {short(axis)} into {count} equal parts. "
            f"It takes one of the array's axes, of a length that {count} divides; pad the array, or name another axis."
        )

    @classmethod
    def not_groups(cls, what: str) -> Self:
        return cls(f"{what} holds tensors themselves. It takes one list of tensors for each device.")

    @classmethod
    def not_a_list(cls, what: str, value: object, of: str) -> Self:
        """Refuse something without an order, or that cannot be iterated over."""
        return cls(f"{what} has {short(value)} where a list of {of} is meant. Pass a list or tuple.")

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
    def flags(cls, name: str) -> Self:
        return cls(
            f"The models do not agree on {name}, which has no mean: it is no number. "
            f"Make it equal in all models, or leave it out."
        )


class CallError(TreefoldError, TypeError):
    """Arguments that do not go together."""

    @classmethod
    def values_apart(cls, caller: str) -> Self:
        """Values stand beside each other where one list of them is meant."""
        return cls(
            f"{caller} got a value where its reduce op is meant. It takes the values of all replicas in one list: "
            f"write {caller}([a, b]), or {caller}([a, a]) for one value twice."
        )

    @classmethod
    def component_index(cls, owner: str, index: object, count: int, *, is_device: bool) -> Self:
        """A component is asked for by something else than its number. ``is_device``: ``on`` may find it."""
        of_device = (
            f"{owner.lower()}.on({short(index)}) returns that of a device"
            if is_device
            else "devices tells where each is"
        )
        return cls(f"{owner} got the index {short(index)}. Components have numbers, 0 to {count - 1}, and {of_device}.")

    @classmethod
    def both_option_names(cls) -> Self:
        return cls("options and experimental_hints are two names of one argument. Give one of them.")

    @classmethod
    def class_for_object(cls, name: str) -> Self:
        return cls(f"{name} is the class; make an object of it first: {name}().")

    @classmethod
    def no_gradient(cls) -> Self:
        return cls(
            "treefold's reductions have no gradient. Reduce outside of the tape, or call all_reduce of the replica "
            "context, whose gradient TensorFlow knows."
        )


class MissingImplementationError(TreefoldError, NotImplementedError):
    """A subclass without ops does not say how to do what it is asked for."""

    @classmethod
    def method(cls, owner: str, name: str) -> Self:
        return cls(
            f"{owner} has no ops and no {name}. Define {name}, or hand ops of treefold to CrossDeviceOps.__init__."
        )
