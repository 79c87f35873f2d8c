# What a source build adds to the tree's own CMake files, without touching them: included at the end
# of project(Torch) (CMAKE_PROJECT_Torch_INCLUDE), which every release from 2.6 on has.
#
#   CMAKE_TORCHFORK_INCLUDE    directories of headers that upstream expects in third_party
#   CMAKE_TORCHFORK_PROTOC     a protoc of the version of third_party/protobuf; it is then not built
#   CMAKE_TORCHFORK_GENERATED  the -O level of generated bindings and dispatch code
#   CMAKE_TORCHFORK_GLUE       the -O level of what runs once a program or once a graph, which goes
#                              over the one of generated code
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

# A target's sources by full names.
function(torchfork_sources target found)
  get_target_property(sources ${target} SOURCES)
  get_target_property(directory ${target} SOURCE_DIR)
  set(full "")
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${directory}" NORMALIZE)
    list(APPEND full "${source}")
  endforeach()
  set(${found} "${full}" PARENT_SCOPE)
endfunction()

# Appends an option to those sources of a target whose paths match: the last -O of a command counts.
function(torchfork_option target option pattern)
  if(NOT TARGET ${target})
    return()
  endif()
  torchfork_sources(${target} sources)
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
    if(TARGET ${target})
      math(EXPR number "${number} + 1")
      list(TRANSFORM words PREPEND "${CMAKE_SOURCE_DIR}/")
      torchfork_join(${target} "${CMAKE_BINARY_DIR}/torchfork/unity${number}.cpp" ${words})
    endif()
  endforeach()
endfunction()

# CMake's own unity builds leave files with flags of their own out, such as the kernels of a
# capability. Here the first file's flags count, and a file with others compiles alone.
function(torchfork_join target unit first)
  set(properties COMPILE_FLAGS COMPILE_OPTIONS COMPILE_DEFINITIONS)
  foreach(property IN LISTS properties)
    get_source_file_property(${property} "${first}" TARGET_DIRECTORY ${target} ${property})
  endforeach()
  torchfork_sources(${target} sources)
  set(lines "")
  set(members "")
  foreach(source IN ITEMS "${first}" ${ARGN})
    set(fits ON)
    foreach(property IN LISTS properties)
      get_source_file_property(value "${source}" TARGET_DIRECTORY ${target} ${property})
      if(NOT value STREQUAL ${property})
        set(fits OFF)
      endif()
    endforeach()
    # A build with other USE_ switches leaves some files out.
    if(fits AND source IN_LIST sources)
      file(RELATIVE_PATH name "${CMAKE_BINARY_DIR}/torchfork" "${source}")
      string(APPEND lines "#include \"${name}\"\n")
      list(APPEND members "${source}")
    endif()
  endforeach()
  list(LENGTH members count)
  if(count LESS 2)
    return()
  endif()
  file(CONFIGURE OUTPUT "${unit}" CONTENT "${lines}" @ONLY)
  # In its first member's place: objects are initialized in the order in which they are linked, and
  # upstream's registrations count on theirs (fbgemm_utils.cpp knows types that later files take).
  list(GET members 0 leader)
  list(FIND sources "${leader}" place)
  get_target_property(given ${target} SOURCES)
  list(INSERT given ${place} "${unit}")
  set_property(TARGET ${target} PROPERTY SOURCES "${given}")
  foreach(property IN LISTS properties)
    if(${property})
      set_property(SOURCE "${unit}" TARGET_DIRECTORY ${target} PROPERTY ${property} "${${property}}")
    endif()
  endforeach()
  set_property(SOURCE ${members} TARGET_DIRECTORY ${target} PROPERTY HEADER_FILE_ONLY ON)
endfunction()

set(TORCHFORK_ONCE_A_GRAPH
  "api|backends|codegen|frontend|ir|mobile|operator_upgraders|passes|python|serialization|tensorexpr|testing")

# Runs when every directory is known.
function(torchfork_tune)
  if(CMAKE_TORCHFORK_GENERATED)
    # Generated files are wide, not deep: thousands of small functions that box, unbox and dispatch.
    torchfork_option(torch_cpu "${CMAKE_TORCHFORK_GENERATED}"
      "/autograd/generated/|/build/aten/src/ATen/(Register|Operators|Composite|UfuncCPU_)")
    torchfork_option(torch_python "${CMAKE_TORCHFORK_GENERATED}" "/autograd/generated/")
  endif()
  if(CMAKE_TORCHFORK_GLUE)
    # What runs once a program, once a graph or once a file, and what runs while TorchScript traces.
    torchfork_option(torch_cpu "${CMAKE_TORCHFORK_GLUE}"
      "/autograd/generated/TraceType|/csrc/(api|inductor|lazy|profiler|jit/(${TORCHFORK_ONCE_A_GRAPH}))/")
    torchfork_option(torch_python "${CMAKE_TORCHFORK_GLUE}"
      "/csrc/(inductor|lazy|onnx|profiler|jit/(${TORCHFORK_ONCE_A_GRAPH}))/")
    foreach(target IN ITEMS onnx onnx_proto libprotobuf libprotobuf-lite)
      torchfork_option(${target} "${CMAKE_TORCHFORK_GLUE}" "\\.cc$|\\.cpp$")
    endforeach()
  endif()
  if(CMAKE_TORCHFORK_DEFAULT)
    torchfork_option(torch_cpu "${CMAKE_TORCHFORK_DEFAULT}" "\\.DEFAULT\\.cpp$")
  endif()
  if(CMAKE_TORCHFORK_UNITY)
    torchfork_unity("${CMAKE_TORCHFORK_UNITY}")
  endif()
endfunction()
cmake_language(DEFER CALL torchfork_tune)
