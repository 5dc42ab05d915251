// Expands the arguments of `data ingest` to files.
#pragma once

#include <string>
#include <vector>

namespace specdec::data {

// Files and kStandardInput are returned as they are. A directory is replaced by its own traffic files, without those of
// subdirectories (there `serve --record` keeps other records); a pattern with *, ? or [ that is not a file by the files
// that it matches. Both are sorted by name. Throws Error(kData) for a directory without traffic files or a pattern that
// matches nothing, Error(kUsage) for "-" twice.
std::vector<std::string> expand_sources(const std::vector<std::string>& sources);

}  // namespace specdec::data
