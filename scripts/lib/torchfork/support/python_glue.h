// How generated binding files tell the module's entry point what they hold.
//
// Each generated file of the graft ends in a static registration; the entry point (module.cpp)
// installs what has been registered once libtorch_python has set up the rest. A file that the
// additions have no use for is not compiled and registers nothing.

#pragma once

#include <Python.h>

namespace torchfork {

// A table of functions for one of libtorch_python's own namespaces.
struct MethodTable {
  // attribute of torch._C that holds the namespace, "_VariableFunctions",
  // "TensorBase", "_nn"
  const char* home;
  PyMethodDef* methods; // ends in a null entry
  // the generated functions' own reference to their namespace, set on
  // installation; null where they have none
  PyObject** module_reference;
  MethodTable* next;

  MethodTable(const char* home, PyMethodDef* methods, PyObject** reference);
};

// A generated function that fills a module: autograd nodes, structseq types,
// view metas.
struct Initializer {
  using Function = void (*)(PyObject* module);
  // attribute of torch._C that receives what the function makes
  const char* home;
  Function fill;
  // the function makes a submodule of this name below the module it is given;
  // null where it writes into the module itself
  const char* submodule;
  Initializer* next;

  Initializer(const char* home, Function fill, const char* submodule);
};

// The type of named returns that torch.return_types has under a name, else the one that is given.
PyTypeObject* return_type(const char* name, PyTypeObject* own);

} // namespace torchfork
