# What a source build adds to the tree's own CMake files, without touching them: included at the end
# of project(Torch) (CMAKE_PROJECT_Torch_INCLUDE), which every release from 2.6 on has.
#
#   CMAKE_TORCHFORK_INCLUDE    directories of headers that upstream expects in third_party
#   CMAKE_TORCHFORK_PROTOC     a protoc of the version of third_party/protobuf; it is then not built
#   CMAKE_TORCHFORK_GENERATED  the -O level of generated bindings and dispatch code
#   CMAKE_TORCHFORK_DEFAULT    the -O level of kernels for processors without AVX2
#   CMAKE_TORCHFORK_HEAP       kB that GCC's heap grows to before it collects garbage
#   CMAKE_TORCHFORK_UNITY      a list of files that compile as one: a target and its files a line
#
# All of them are cache variables, so that a reconfigure which ninja starts knows them too.

# No path of the machine gets into the libraries: the same sources give the same bytes anywhere.
add_compile_options("-ffile-prefix-map=${CMAKE_SOURCE_DIR}=pytorch")

if(CMAKE_TORCHFORK_HEAP AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-expand=300>"
    "$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=${CMAKE_TORCHFORK_HEAP}>")
endif()

if(CMAKE_TORCHFORK_INCLUDE)
  include_directories(SYSTEM ${CMAKE_TORCHFORK_INCLUDE})
endif()

if(CMAKE_TORCHFORK_PROTOC)
  set(CAFFE2_CUSTOM_PROTOC_EXECUTABLE "${CMAKE_TORCHFORK_PROTOC}" CACHE FILEPATH "" FORCE)
  set(ONNX_CUSTOM_PROTOC_EXECUTABLE "${CMAKE_TORCHFORK_PROTOC}" CACHE FILEPATH "" FORCE)
  set(protobuf_BUILD_PROTOC_BINARIES OFF CACHE BOOL "" FORCE)
endif()

# Appends an option to those sources of a target whose paths match: the last -O of a command counts.
function(torchfork_option target option pattern)
  if(NOT TARGET ${target})
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "${pattern}")
  if(sources)
    set_property(SOURCE ${sources} TARGET_DIRECTORY ${target}
      APPEND PROPERTY COMPILE_OPTIONS "${option}")
  endif()
endfunction()

# Most of a small file's time goes into headers that its neighbours include too. Which files may be
# compiled as one was tried out for the release at hand (ci/find_unity_groups.py).
function(torchfork_unity list)
  file(STRINGS "${list}" lines REGEX "^[^#]")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list}")
  set(number 0)
  foreach(line IN LISTS lines)
    separate_arguments(words UNIX_COMMAND "${line}")
    list(POP_FRONT words target)
    if(NOT TARGET ${target})
      continue()
    endif()
    list(TRANSFORM words PREPEND "${CMAKE_SOURCE_DIR}/")
    math(EXPR number "${number} + 1")
    list(GET words 0 first)
    get_source_file_property(flags "${first}" TARGET_DIRECTORY ${target} COMPILE_FLAGS)
    if(flags)
      torchfork_join(${target} "${CMAKE_BINARY_DIR}/torchfork/unity${number}.cpp" ${words})
    else()
      set_property(SOURCE ${words} TARGET_DIRECTORY ${target}
        PROPERTY UNITY_GROUP "torchfork${number}")
      set_target_properties(${target} PROPERTIES
        UNITY_BUILD ON UNITY_BUILD_MODE GROUP UNITY_BUILD_RELOCATABLE ON)
    endif()
  endforeach()
endfunction()

# CMake leaves files with flags of their own out of its unity builds. These all have the same.
function(torchfork_join target unit)
  list(GET ARGN 0 first)
  set(lines "")
  foreach(source IN LISTS ARGN)
    file(RELATIVE_PATH name "${CMAKE_BINARY_DIR}/torchfork" "${source}")
    string(APPEND lines "#include \"${name}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT "${unit}" CONTENT "${lines}" @ONLY)
  target_sources(${target} PRIVATE "${unit}")
  foreach(property IN ITEMS COMPILE_FLAGS COMPILE_OPTIONS COMPILE_DEFINITIONS)
    get_source_file_property(value "${first}" TARGET_DIRECTORY ${target} ${property})
    if(value)
      set_property(SOURCE "${unit}" TARGET_DIRECTORY ${target} PROPERTY ${property} "${value}")
    endif()
  endforeach()
  set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} PROPERTY HEADER_FILE_ONLY ON)
endfunction()

# Runs when every directory is known.
function(torchfork_tune)
  if(CMAKE_TORCHFORK_GENERATED)
    # Generated files are wide, not deep: thousands of small functions that box, unbox and dispatch.
    torchfork_option(torch_cpu "${CMAKE_TORCHFORK_GENERATED}"
      "/(autograd|lazy)/generated/|/build/aten/src/ATen/(Register|Operators|Composite|UfuncCPU_)")
    torchfork_option(torch_python "${CMAKE_TORCHFORK_GENERATED}" "/autograd/generated/")
  endif()
  if(CMAKE_TORCHFORK_DEFAULT)
    torchfork_option(torch_cpu "${CMAKE_TORCHFORK_DEFAULT}" "\\.DEFAULT\\.cpp$")
  endif()
  if(CMAKE_TORCHFORK_UNITY)
    torchfork_unity("${CMAKE_TORCHFORK_UNITY}")
  endif()
endfunction()
cmake_language(DEFER CALL torchfork_tune)
