// Stands in for what generated Python bindings call and libtorch_python.so keeps to itself.
// See core_support.cpp for why; the declarations are those of the wheel's headers.

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/disable_torch_function.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_arg_parser.h>
#include <torch/csrc/utils/structseq.h>

#include <ATen/PythonTorchFunctionTLS.h>

#include <structmember.h>

#include <string>

namespace torch {

namespace {

// The attribute of a module or class that a call is reported as, a new reference.
PyObject* public_function(PyObject* torch_api, const std::string& name) {
  PyObject* function = PyObject_GetAttrString(torch_api, name.c_str());
  if (function == nullptr) {
    throw python_error();
  }
  return function;
}

// (self, *args), as a method's arguments are reported.
PyObject* with_self(PyObject* self, PyObject* args) {
  THPObjectPtr first(PyTuple_Pack(1, self));
  if (!first) {
    throw python_error();
  }
  if (args == nullptr) {
    return first.release();
  }
  PyObject* all = PySequence_Concat(first.get(), args);
  if (all == nullptr) {
    throw python_error();
  }
  return all;
}

// Whether a type answers to __torch_function__, leaving out those that opted out of it. Looked up
// on the type, as Python looks up every special method.
bool overrides_torch_function(PyTypeObject* type) {
  static PyObject* const disabled = [] {
    THPObjectPtr module(PyImport_ImportModule("torch._C"));
    PyObject* found =
        module ? PyObject_GetAttrString(module.get(), "_disabled_torch_function_impl") : nullptr;
    if (found == nullptr) {
      throw python_error();
    }
    return found;
  }();
  THPObjectPtr override(PyObject_GetAttrString((PyObject*)type, "__torch_function__"));
  if (!override) {
    PyErr_Clear();
    return false;
  }
  return override.get() != disabled;
}

} // namespace

bool check_has_torch_function(PyObject* obj, bool ignore_mode) {
  if (!ignore_mode && at::impl::torch_function_mode_enabled()) {
    return true;
  }
  if (at::impl::PythonTorchFunctionTLS::get_disabled_state() !=
      at::impl::TorchFunctionDisabledState::ENABLED) {
    return false;
  }
  return !THPVariable_CheckExact(obj) && overrides_torch_function(Py_TYPE(obj));
}

#if TORCHFORK_SKIP_NEXT
bool consume_should_skip_torch_function() {
  return at::impl::PythonTorchFunctionTLS::exchange_skip_next(false);
}
#endif

auto handle_torch_function(
    PythonArgs& r,
    PyObject* self,
    PyObject* args,
    PyObject* kwargs,
    PyObject* torch_api,
    const char* module_name,
    const char* func_name_override) -> PyObject* {
  const std::string name = func_name_override != nullptr ? func_name_override : r.get_func_name();
  THPObjectPtr function(public_function(torch_api, name));
  THPObjectPtr all_args(self != nullptr ? with_self(self, args) : nullptr);
  return handle_torch_function_no_python_arg_parser(
      r.overloaded_args,
      self != nullptr ? all_args.get() : args,
      kwargs,
      name.c_str(),
      function.get(),
      module_name);
}

auto handle_torch_function(
    PythonArgs& r,
    PyObject* args,
    PyObject* kwargs,
    PyObject* torch_api,
    const char* module_name,
    const char* func_name_override) -> PyObject* {
  return handle_torch_function(
      r, nullptr, args, kwargs, torch_api, module_name, func_name_override);
}

auto handle_torch_function(
    PyObject* self,
    const std::string& func_name,
    PyObject* args,
    PyObject* kwargs,
    PyObject* torch_api,
    const std::string& module_name) -> PyObject* {
  THPObjectPtr function(public_function(torch_api, func_name));
  THPObjectPtr all_args(with_self(self, args));
  return handle_torch_function_no_python_arg_parser(
      {self}, all_args.get(), kwargs, func_name.c_str(), function.get(), module_name.c_str());
}

} // namespace torch

namespace torch::utils {

PyObject* returned_structseq_repr(PyStructSequence* obj) {
  PyTypeObject* type = Py_TYPE(obj);
  std::string text = std::string(type->tp_name) + "(\n";
  const Py_ssize_t count = PyTuple_GET_SIZE((PyObject*)obj);
  for (Py_ssize_t i = 0; i < count; ++i) {
    THPObjectPtr shown(PyObject_Repr(PyTuple_GET_ITEM((PyObject*)obj, i)));
    const char* value = shown ? PyUnicode_AsUTF8(shown.get()) : nullptr;
    if (value == nullptr) {
      return nullptr;
    }
    text += std::string(type->tp_members[i].name) + "=" + value;
    text += i + 1 < count ? ",\n" : ")";
  }
  return PyUnicode_FromString(text.c_str());
}

} // namespace torch::utils
