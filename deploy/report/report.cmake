# specdec_report makes HTML pages with inlined assets and files for CI pipelines. It does not use torch.
set(assets ${CMAKE_CURRENT_LIST_DIR}/assets)
set(assets_cpp ${CMAKE_CURRENT_BINARY_DIR}/report_assets.cpp)
specdec_embed(${assets_cpp} specdec::deploy::assets kUplotJs=${assets}/uPlot.iife.min.js kUplotCss=${assets}/uPlot.min.css
  kUplotLicense=${assets}/LICENSE kReportJs=${assets}/report.js kReportCss=${assets}/report.css)
file(GLOB report CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
specdec_module(specdec_report ${report} ${assets_cpp} DEPS specdec_base)
