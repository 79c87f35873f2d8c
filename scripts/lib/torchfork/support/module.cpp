// torch._C's entry point: libtorch_python's own initialisation, then the additions' bindings.
//
// Takes the place of the stub that the wheel carries as torch/_C.<abi>.so, whose whole content is
// a call of initModule().

#include "python_glue.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

#include <cstring>

extern "C" PyObject* initModule();

namespace torchfork {

namespace {

MethodTable* tables = nullptr;
Initializer* initializers = nullptr;

PyObject* original_autograd_init = nullptr;
PyObject* torch_c = nullptr; // borrowed; the module outlives every caller

// What a namespace calls a function: static methods on a class, descriptors on a type, or plain
// functions in a module.
PyObject* wrap_method(PyObject* home, PyMethodDef* method) {
  if (PyModule_Check(home)) {
    // as PyModule_Create makes them: torch.compile finds a builtin by its module's name
    THPObjectPtr name(PyModule_GetNameObject(home));
    return name ? PyCFunction_NewEx(method, home, name.get()) : nullptr;
  }
  if (method->ml_flags & METH_STATIC) {
    THPObjectPtr function(PyCFunction_NewEx(method, home, nullptr));
    return function ? PyStaticMethod_New(function.get()) : nullptr;
  }
  return PyDescr_NewMethod((PyTypeObject*)home, method);
}

bool install_method(PyObject* home, PyMethodDef* method) {
  THPObjectPtr wrapped(wrap_method(home, method));
  if (!wrapped) {
    return false;
  }
  if (PyModule_Check(home)) {
    return PyObject_SetAttrString(home, method->ml_name, wrapped.get()) == 0;
  }
  // A static type refuses setattr; its dictionary is where type creation itself puts methods.
  auto* type = (PyTypeObject*)home;
  if (PyDict_SetItemString(type->tp_dict, method->ml_name, wrapped.get()) != 0) {
    return false;
  }
  PyType_Modified(type);
  return true;
}

bool install_table(PyObject* module, const MethodTable& table) {
  THPObjectPtr home(PyObject_GetAttrString(module, table.home));
  if (!home) {
    return false;
  }
  if (table.module_reference != nullptr) {
    Py_INCREF(home.get()); // held for as long as the process lives, as upstream holds its own
    *table.module_reference = home.get();
  }
  PyObject* target = home.get();
  // torch._C._VariableFunctions is an instance; its functions live on its class.
  const bool is_instance = !PyModule_Check(target) && !PyType_Check(target);
  if (is_instance) {
    target = (PyObject*)Py_TYPE(target);
  }
  for (PyMethodDef* method = table.methods; method->ml_name != nullptr; ++method) {
    if (!install_method(target, method)) {
      return false;
    }
  }
  return true;
}

// Runs a generated function that insists on making its own submodule, and moves over what the
// real one lacks.
bool merge_submodule(PyObject* home, const Initializer& initializer) {
  THPObjectPtr scratch(PyModule_New("torchfork_scratch"));
  if (!scratch) {
    return false;
  }
  initializer.fill(scratch.get());
  THPObjectPtr made(PyObject_GetAttrString(scratch.get(), initializer.submodule));
  if (!made) {
    return false;
  }
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(PyModule_GetDict(made.get()), &position, &name, &value)) {
    if (!PyObject_HasAttr(home, name) && PyObject_SetAttr(home, name, value) != 0) {
      return false;
    }
  }
  return true;
}

bool run_initializer(PyObject* module, const Initializer& initializer) {
  THPObjectPtr home(PyObject_GetAttrString(module, initializer.home));
  if (!home) {
    return false;
  }
  if (initializer.submodule != nullptr) {
    return merge_submodule(home.get(), initializer);
  }
  initializer.fill(home.get());
  return !PyErr_Occurred();
}

constexpr const char* kAutogradHome = "_functions";

bool is_autograd(const Initializer& initializer) {
  return std::strcmp(initializer.home, kAutogradHome) == 0;
}

// torch._C._functions comes into being when torch.autograd is imported, so the nodes' classes are
// added behind the call that makes it.
PyObject* autograd_init(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  THPObjectPtr result(PyObject_Call(original_autograd_init, args, nullptr));
  if (!result) {
    return nullptr;
  }
  for (auto* each = initializers; each != nullptr; each = each->next) {
    if (is_autograd(*each) && !run_initializer(torch_c, *each)) {
      return nullptr;
    }
  }
  return result.release();
  END_HANDLE_TH_ERRORS
}

PyMethodDef autograd_init_method = {"_autograd_init", autograd_init, METH_VARARGS, nullptr};

bool wrap_autograd_init(PyObject* module) {
  original_autograd_init = PyObject_GetAttrString(module, "_autograd_init");
  if (original_autograd_init == nullptr) {
    return false;
  }
  THPObjectPtr wrapper(PyCFunction_NewEx(&autograd_init_method, nullptr, nullptr));
  return wrapper && PyObject_SetAttrString(module, "_autograd_init", wrapper.get()) == 0;
}

PyObject* install(PyObject* module) {
  HANDLE_TH_ERRORS
  torch_c = module;
  for (auto* each = initializers; each != nullptr; each = each->next) {
    if (!is_autograd(*each) && !run_initializer(module, *each)) {
      return nullptr;
    }
  }
  for (auto* each = tables; each != nullptr; each = each->next) {
    if (!install_table(module, *each)) {
      return nullptr;
    }
  }
  return wrap_autograd_init(module) ? module : nullptr;
  END_HANDLE_TH_ERRORS
}

} // namespace

MethodTable::MethodTable(const char* home, PyMethodDef* methods, PyObject** reference)
    : home(home), methods(methods), module_reference(reference), next(tables) {
  tables = this;
}

PyTypeObject* return_type(const char* name, PyTypeObject* own) {
  THPObjectPtr types(PyObject_GetAttrString(torch_c, "_return_types"));
  THPObjectPtr known(types ? PyObject_GetAttrString(types.get(), name) : nullptr);
  PyErr_Clear();
  // a type in torch.return_types lives as long as the process: libtorch_python holds it
  return known && PyType_Check(known.get()) ? (PyTypeObject*)known.get() : own;
}

Initializer::Initializer(const char* home, Function fill, const char* submodule)
    : home(home), fill(fill), submodule(submodule), next(initializers) {
  initializers = this;
}

} // namespace torchfork

PyMODINIT_FUNC PyInit__C() {
  PyObject* module = initModule();
  return module == nullptr ? nullptr : torchfork::install(module);
}
