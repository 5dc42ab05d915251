// Expands the arguments of `data ingest` to files.
#pragma once

#include <string>
#include <vector>

namespace specdec::data {

// Returns files and kStandardInput as they are. Replaces a directory by the traffic files directly in it; `serve
// --record` keeps other records in subdirectories. Replaces a pattern with *, ? or [ by the files that it matches,
// unless a file has that name. The files of a directory or pattern are sorted by name. Throws Error(kData) for a
// directory without traffic files or a pattern that matches nothing, Error(kUsage) for "-" twice.
std::vector<std::string> expand_sources(const std::vector<std::string>& sources);

// Returns whether all files are named as plain text: .txt or .md (also with .gz or .zst). Unless the user asks for it,
// only such files are read as documents, because neither an access log nor notes beside logs are text to learn.
bool are_plain_text(const std::vector<std::string>& files);

}  // namespace specdec::data
