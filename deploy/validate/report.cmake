# specdec_report: the HTML writer and its inlined assets, torch-free.
set(asset_folder ${CMAKE_CURRENT_LIST_DIR}/assets)
set(assets_cpp ${CMAKE_CURRENT_BINARY_DIR}/report_assets.cpp)
file(GLOB asset_files CONFIGURE_DEPENDS ${asset_folder}/*)
add_custom_command(OUTPUT ${assets_cpp}
  COMMAND ${CMAKE_COMMAND} -DOUT=${assets_cpp} -DASSETS=${asset_folder} -P ${CMAKE_CURRENT_LIST_DIR}/embed.cmake
  DEPENDS ${asset_files} ${CMAKE_CURRENT_LIST_DIR}/embed.cmake)
file(GLOB report CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/report*.cpp)
specdec_module(specdec_report ${report} ${assets_cpp} DEPS specdec_base)
