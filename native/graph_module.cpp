#include "graph_module.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "border.hpp"

namespace nb = nanobind;

// TensorFlow's C interface for operations and kernels (tensorflow/c/ops.h, kernels.h, tf_tensor.h, tf_status.h), which
// plug-ins for devices are written against. treefold is built without TensorFlow: Python looks the functions up in the
// library that it has loaded, and hands over their addresses.
struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;

namespace {

using Infer = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using Create = void* (*)(TF_OpKernelConstruction*);
using Compute = void (*)(void*, TF_OpKernelContext*);
using Delete = void (*)(void*);

#define TREEFOLD_TENSORFLOW(X)                                                                                         \
  X(TF_NewStatus, TF_Status*, ())                                                                                      \
  X(TF_DeleteStatus, void, (TF_Status*))                                                                               \
  X(TF_SetStatus, void, (TF_Status*, int, const char*))                                                                \
  X(TF_GetCode, int, (const TF_Status*))                                                                               \
  X(TF_Message, const char*, (const TF_Status*))                                                                       \
  X(TF_NewOpDefinitionBuilder, TF_OpDefinitionBuilder*, (const char*))                                                 \
  X(TF_OpDefinitionBuilderAddAttr, void, (TF_OpDefinitionBuilder*, const char*))                                       \
  X(TF_OpDefinitionBuilderAddInput, void, (TF_OpDefinitionBuilder*, const char*))                                      \
  X(TF_OpDefinitionBuilderAddOutput, void, (TF_OpDefinitionBuilder*, const char*))                                     \
  X(TF_OpDefinitionBuilderSetShapeInferenceFunction, void, (TF_OpDefinitionBuilder*, Infer))                           \
  X(TF_RegisterOpDefinition, void, (TF_OpDefinitionBuilder*, TF_Status*))                                              \
  X(TF_NewShapeHandle, TF_ShapeHandle*, ())                                                                            \
  X(TF_DeleteShapeHandle, void, (TF_ShapeHandle*))                                                                     \
  X(TF_ShapeInferenceContextGetInput, void, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))             \
  X(TF_ShapeInferenceContextSetOutput, void, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))            \
  X(TF_NewKernelBuilder, TF_KernelBuilder*, (const char*, const char*, Create, Compute, Delete))                       \
  X(TF_RegisterKernelBuilder, void, (const char*, TF_KernelBuilder*, TF_Status*))                                      \
  X(TF_OpKernelConstruction_GetAttrInt32, void, (TF_OpKernelConstruction*, const char*, std::int32_t*, TF_Status*))    \
  X(TF_OpKernelConstruction_Failure, void, (TF_OpKernelConstruction*, TF_Status*))                                     \
  X(TF_NumInputs, int, (TF_OpKernelContext*))                                                                          \
  X(TF_GetInput, void, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                            \
  X(TF_AllocateOutput, TF_Tensor*, (TF_OpKernelContext*, int, int, const std::int64_t*, int, std::size_t, TF_Status*)) \
  X(TF_ExpectedOutputDataType, int, (TF_OpKernelContext*, int))                                                        \
  X(TF_OpKernelContext_Failure, void, (TF_OpKernelContext*, TF_Status*))                                               \
  X(TF_DeleteTensor, void, (TF_Tensor*))                                                                               \
  X(TF_TensorData, void*, (const TF_Tensor*))                                                                          \
  X(TF_TensorByteSize, std::size_t, (const TF_Tensor*))                                                                \
  X(TF_NumDims, int, (const TF_Tensor*))                                                                               \
  X(TF_Dim, std::int64_t, (const TF_Tensor*, int))

#define TREEFOLD_POINTER(name, result, parameters) result(*name) parameters = nullptr;
#define TREEFOLD_FUNCTION_NAME(name, result, parameters) #name,
#define TREEFOLD_TAKE(name, result, parameters) tensorflow.name = reinterpret_cast<result(*) parameters>(*address++);

struct Functions {
  TREEFOLD_TENSORFLOW(TREEFOLD_POINTER)
};
constexpr const char* function_names[] = {TREEFOLD_TENSORFLOW(TREEFOLD_FUNCTION_NAME)};
constexpr std::size_t function_count = sizeof function_names / sizeof *function_names;

// Written once, before there is an operation that reads them.
Functions tensorflow;
int vector_level = 0;

constexpr const char* operation = "TreefoldFold";
constexpr int ok = 0, invalid_argument = 3, resource_exhausted = 8;  // TF_Code
// Up to this number of bytes, read and written, TensorFlow's calling thread folds alone: the threads of treefold's pool would
// hold up TensorFlow's other threads, which run other operations.
constexpr std::size_t lone_thread_bytes = std::size_t{1} << 24;

struct Status {
  Status() : status(tensorflow.TF_NewStatus()) {}
  ~Status() { tensorflow.TF_DeleteStatus(status); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  bool is_ok() const { return tensorflow.TF_GetCode(status) == ok; }
  TF_Status* const status;
};

struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { tensorflow.TF_DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, DeleteTensor>;

void infer_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* const shape = tensorflow.TF_NewShapeHandle();
  tensorflow.TF_ShapeInferenceContextGetInput(context, 0, shape, status);
  if (tensorflow.TF_GetCode(status) == ok) tensorflow.TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  tensorflow.TF_DeleteShapeHandle(shape);
}

void* create(TF_OpKernelConstruction* construction) {
  Status status;
  std::int32_t dtype = -1, op = -1, accumulate = -1;
  const struct {
    const char* name;
    std::int32_t* value;
  } attributes[] = {{"dtype", &dtype}, {"op", &op}, {"accumulate", &accumulate}};
  for (const auto& one : attributes) {
    tensorflow.TF_OpKernelConstruction_GetAttrInt32(construction, one.name, one.value, status.status);
    if (!status.is_ok()) break;
  }
  try {
    if (status.is_ok()) {
      return new treefold::Item(item_of(dtype, fold_request(op, accumulate, vector_level)));
    }
  } catch (const std::exception& error) {
    tensorflow.TF_SetStatus(status.status, invalid_argument, error.what());
  }
  tensorflow.TF_OpKernelConstruction_Failure(construction, status.status);
  return nullptr;
}

void remove(void* kernel) { delete static_cast<treefold::Item*>(kernel); }

// The inputs of an operation; the executor keeps them alive and unchanged while the operation runs.
struct Inputs {
  std::vector<const void*> memory;
  std::vector<std::int64_t> shape;
  std::size_t nbytes = 0;
};

std::vector<std::int64_t> shape_of(const TF_Tensor* tensor) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(tensorflow.TF_NumDims(tensor)));
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    shape[axis] = tensorflow.TF_Dim(tensor, static_cast<int>(axis));
  }
  return shape;
}

bool read(TF_OpKernelContext* context, Inputs& inputs, Status& status) {
  const int count = tensorflow.TF_NumInputs(context);
  for (int i = 0; i < count; ++i) {
    TF_Tensor* given = nullptr;
    tensorflow.TF_GetInput(context, i, &given, status.status);
    if (!status.is_ok()) return false;
    const Tensor tensor(given);  // released at once: the executor holds it
    if (i == 0) {
      inputs.nbytes = tensorflow.TF_TensorByteSize(given);
      inputs.shape = shape_of(given);
    } else if (shape_of(given) != inputs.shape) {
      const std::string sentence = "Replica " + std::to_string(i) + " has another shape than replica 0.";
      tensorflow.TF_SetStatus(status.status, invalid_argument, sentence.c_str());
      return false;
    }
    inputs.memory.push_back(tensorflow.TF_TensorData(given));
  }
  return true;
}

Tensor make_result(const treefold::Item& fold, TF_OpKernelContext* context, const Inputs& inputs, Status& status) {
  const std::size_t nbytes = inputs.nbytes / fold.source_bytes * fold.target_bytes;
  const int dtype = tensorflow.TF_ExpectedOutputDataType(context, 0), rank = static_cast<int>(inputs.shape.size());
  Tensor result(tensorflow.TF_AllocateOutput(context, 0, dtype, inputs.shape.data(), rank, nbytes, status.status));
  // A graph may come from a file with attributes that contradict each other.
  if (status.is_ok() && tensorflow.TF_TensorByteSize(result.get()) != nbytes) {
    tensorflow.TF_SetStatus(status.status, invalid_argument, "The attributes T, R and dtype of a fold do not fit together.");
  }
  return result;
}

void fold_into(treefold::Item item, const Inputs& inputs, void* result) {
  item.sources = inputs.memory.data();
  item.arithmetic.count = inputs.memory.size();
  item.targets = &result;
  item.target_count = 1;
  item.length = inputs.nbytes / item.source_bytes;
  const std::vector<treefold::Item> items{item};
  if (!treefold::fold_if_small(items, lone_thread_bytes)) treefold::fold_batch(items, [] { return false; });
}

// Called on a thread of TensorFlow's, without the GIL, and by several at once.
void compute(void* kernel, TF_OpKernelContext* context) {
  const auto& fold = *static_cast<const treefold::Item*>(kernel);
  Status status;
  try {
    Inputs inputs;
    if (read(context, inputs, status)) {
      const Tensor result = make_result(fold, context, inputs, status);
      if (status.is_ok()) return fold_into(fold, inputs, tensorflow.TF_TensorData(result.get()));
    }
  } catch (const std::exception& error) {  // no memory for the tasks
    tensorflow.TF_SetStatus(status.status, resource_exhausted, error.what());
  }
  tensorflow.TF_OpKernelContext_Failure(context, status.status);
}

void check(const Status& status) {
  if (!status.is_ok()) throw nb::value_error(tensorflow.TF_Message(status.status));
}

void register_fold(const std::vector<std::uintptr_t>& addresses, int level) {
  if (addresses.size() != function_count) refuse("register_fold takes the address of each of TENSORFLOW_FUNCTIONS.");
  level_at(level);
  static bool is_registered = false;  // guarded by the GIL; TensorFlow ends the process on a second registration
  if (is_registered) return;
  is_registered = true;
  auto address = addresses.begin();
  TREEFOLD_TENSORFLOW(TREEFOLD_TAKE)
  vector_level = level;
  const Status status;
  TF_OpDefinitionBuilder* const definition = tensorflow.TF_NewOpDefinitionBuilder(operation);
  const std::string types =
      "{half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, "
      "complex64, complex128, bool}";
  const std::string attributes[] = {"N: int >= 1", "T: " + types, "R: " + types, "dtype: int", "op: int", "accumulate: int"};
  for (const std::string& attribute : attributes) {
    tensorflow.TF_OpDefinitionBuilderAddAttr(definition, attribute.c_str());
  }
  tensorflow.TF_OpDefinitionBuilderAddInput(definition, "contributions: N * T");
  tensorflow.TF_OpDefinitionBuilderAddOutput(definition, "result: R");
  tensorflow.TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, &infer_shape);
  tensorflow.TF_RegisterOpDefinition(definition, status.status);
  check(status);
  TF_KernelBuilder* const builder = tensorflow.TF_NewKernelBuilder(operation, "CPU", &create, &compute, &remove);
  tensorflow.TF_RegisterKernelBuilder(operation, builder, status.status);
  check(status);
}

}  // namespace

void define_graphs(nb::module_& module) {
  nb::list names;
  for (const char* name : function_names) names.append(nb::str(name));
  module.attr("TENSORFLOW_FUNCTIONS") = nb::tuple(names);
  module.def("register_fold", &register_fold, nb::arg("addresses"), nb::arg("level"),
             "Register the operation TreefoldFold with TensorFlow; again, do nothing.\n\n"
             "addresses: of TENSORFLOW_FUNCTIONS, in their order; level: the index of a vector level.");
}
