#include "data/sources/sources.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "data/sources/byte_source.h"

namespace specdec::data {

namespace {

namespace fs = std::filesystem;

constexpr const char* kTrafficFiles =
    ".jsonl, .ndjson, .json, .parquet, .csv, .tsv or .txt files (also with .gz or .zst)";

bool is_traffic_file(const fs::path& path) {
  static const std::set<std::string> kExtensions = {".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".tsv", ".txt"};
  return kExtensions.count(traffic_extension(path.string())) != 0;
}

std::vector<std::string> files_inside(const std::string& directory) {
  std::vector<std::string> inside;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.is_regular_file() && is_traffic_file(entry.path().filename())) inside.push_back(entry.path().string());
  if (inside.empty()) throw Error(ErrorKind::kData, directory + ": a directory without " + kTrafficFiles);
  std::sort(inside.begin(), inside.end());
  return inside;
}

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> files;
  for (size_t i = 0; status == 0 && i < found.gl_pathc; ++i)
    if (!fs::is_directory(found.gl_pathv[i])) files.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (files.empty())
    throw Error(ErrorKind::kData, pattern + ": no file of that name, and none that matches it as a pattern");
  return files;
}

}  // namespace

std::vector<std::string> expand_sources(const std::vector<std::string>& sources) {
  if (std::count(sources.begin(), sources.end(), kStandardInput) > 1)
    throw Error(ErrorKind::kUsage, "data ingest: standard input (-) is given twice");
  std::vector<std::string> files;
  for (const std::string& source : sources) {
    std::vector<std::string> found = {source};
    std::error_code ec;
    if (source != kStandardInput && fs::is_directory(source, ec))
      found = files_inside(source);
    else if (source != kStandardInput && !fs::exists(fs::symlink_status(source, ec)) &&
             source.find_first_of("*?[") != std::string::npos)
      found = matches_of(source);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

bool are_plain_text(const std::vector<std::string>& files) {
  return std::all_of(files.begin(), files.end(), [](const std::string& file) {
    const std::string extension = traffic_extension(file);
    return extension == ".txt" || extension == ".md";
  });
}

}  // namespace specdec::data
