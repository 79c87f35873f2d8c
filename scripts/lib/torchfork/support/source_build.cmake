# What a source build adds to the tree's own CMake files, without touching them: included at the end
# of project(Torch) (CMAKE_PROJECT_Torch_INCLUDE), which every release from 2.6 on has.
#
#   CMAKE_TORCHFORK_INCLUDE    directories of headers that upstream expects in third_party
#   CMAKE_TORCHFORK_PROTOC     a protoc of the version of third_party/protobuf; it is then not built
#   CMAKE_TORCHFORK_PCH        precompiled headers for the targets that have hundreds of files
#   CMAKE_TORCHFORK_GENERATED  the -O level of generated bindings and dispatch code
#
# All of them are cache variables, so that a reconfigure which ninja starts knows them too.

# No path of the machine gets into the libraries: the same sources give the same bytes anywhere.
add_compile_options("-ffile-prefix-map=${CMAKE_SOURCE_DIR}=pytorch")

if(CMAKE_TORCHFORK_INCLUDE)
  include_directories(SYSTEM ${CMAKE_TORCHFORK_INCLUDE})
endif()

if(CMAKE_TORCHFORK_PROTOC)
  set(CAFFE2_CUSTOM_PROTOC_EXECUTABLE "${CMAKE_TORCHFORK_PROTOC}" CACHE FILEPATH "" FORCE)
  set(ONNX_CUSTOM_PROTOC_EXECUTABLE "${CMAKE_TORCHFORK_PROTOC}" CACHE FILEPATH "" FORCE)
  set(protobuf_BUILD_PROTOC_BINARIES OFF CACHE BOOL "" FORCE)
endif()

# Generated files are wide, not deep: thousands of small functions that box, unbox and dispatch. What
# the optimizer does to them takes half of their compile time and changes no kernel.
function(torchfork_generated target pattern)
  if(NOT TARGET ${target})
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "${pattern}")
  set_property(SOURCE ${sources} TARGET_DIRECTORY ${target}
    APPEND PROPERTY COMPILE_OPTIONS "${CMAKE_TORCHFORK_GENERATED}")
endfunction()

function(torchfork_precompile target)
  if(TARGET ${target})
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# Runs when every directory is known.
function(torchfork_tune)
  if(CMAKE_TORCHFORK_GENERATED)
    torchfork_generated(torch_cpu "autograd/generated/|lazy/generated/|/build/aten/src/ATen/Reg|/build/aten/src/ATen/Op|/build/aten/src/ATen/Comp")
    torchfork_generated(torch_python "autograd/generated/")
  endif()
endfunction()
cmake_language(DEFER CALL torchfork_tune)
