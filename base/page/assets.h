// Files of base/page/assets as strings, defined by code that cmake/embed.cmake generates.
#pragma once

namespace specdec::assets {

extern const char kUplotJs[];  // uPlot 1.6.32, MIT (npm: uplot)
extern const char kUplotCss[];
extern const char kUplotLicense[];
extern const char kReportJs[];  // our own script, which draws the charts of a page
extern const char kReportCss[];

}  // namespace specdec::assets
