// What the arguments of `data ingest` stand for.
#pragma once

#include <string>
#include <vector>

namespace specdec::data {

// Files and kStandardInput stay; a directory stands for its own traffic files (not its subdirectories': `serve
// --record` keeps other records there), a pattern with *, ? or [ that is no file for the files it matches, both in the
// order of their names. Throws Error(kData): a directory without traffic files, a pattern that matches nothing;
// Error(kUsage): "-" twice.
std::vector<std::string> expand_sources(const std::vector<std::string>& sources);

}  // namespace specdec::data
