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

// Returns whether all files have the name of plain text, .txt or .md (also with .gz or .zst). Only then is text without
// JSON read as documents when the user has not asked for that, because neither an access log nor notes beside logs are
// text to learn.
bool are_plain_text(const std::vector<std::string>& files);

}  // namespace specdec::data
