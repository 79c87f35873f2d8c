# find_package(Torch) of an overlay: torch's own configuration, then the overlay's library and
# headers before torch's. torch.utils.cmake_prefix_path has this directory's parent first.
get_filename_component(_overlay "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

set(_config "")
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  if(NOT _config AND EXISTS "${_prefix}/Torch/TorchConfig.cmake")
    get_filename_component(_candidate "${_prefix}/Torch" ABSOLUTE)
    if(NOT _candidate STREQUAL CMAKE_CURRENT_LIST_DIR)
      set(_config "${_candidate}/TorchConfig.cmake")
    endif()
  endif()
endforeach()
if(NOT _config)
  message(FATAL_ERROR
    "The overlay's TorchConfig.cmake needs torch's own in CMAKE_PREFIX_PATH: pass both entries of "
    "python -c 'import torch; print(torch.utils.cmake_prefix_path)', quoted.")
endif()
# It reads where it is from CMAKE_CURRENT_LIST_FILE, which include() sets.
include("${_config}")

# Everything that links torch links the target's file, which is recorded for each configuration.
get_target_property(_configurations torch IMPORTED_CONFIGURATIONS)
foreach(_configuration IN LISTS _configurations)
  set_target_properties(torch PROPERTIES
    "IMPORTED_LOCATION_${_configuration}" "${_overlay}/lib/libtorch.so")
endforeach()
set_target_properties(torch PROPERTIES IMPORTED_LOCATION "${_overlay}/lib/libtorch.so")
list(INSERT TORCH_INCLUDE_DIRS 0 "${_overlay}/include")
get_target_property(_included torch INTERFACE_INCLUDE_DIRECTORIES)
set_target_properties(torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${_overlay}/include;${_included}")
unset(_overlay)
unset(_config)
unset(_candidate)
unset(_configurations)
unset(_included)
