#include "base/output_directory.h"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "base/json.h"
#include "base/shell.h"

namespace specdec {

namespace {

std::string wanted(const OutputRule& rule) {
  std::string text = "give a new or an empty directory";
  if (!rule.results.empty()) text += ", or one with an earlier result of " + rule.command;
  return text;
}

bool is_schema_of(const fs::path& file, const std::string& schema) {
  try {
    const Json object = read_json(file);
    const auto found = object.is_object() ? object.find("schema") : object.end();
    return found != object.end() && found->is_string() &&
           found->get_ref<const std::string&>().starts_with("specdec." + schema + "/");
  } catch (const Error&) {
    return false;
  }
}

bool has_result(const fs::path& directory, const OutputRule& rule) {
  return std::any_of(rule.results.begin(), rule.results.end(), [&](const ResultFile& file) {
    std::error_code ec;
    const fs::path path = directory / file.name;
    return fs::exists(fs::symlink_status(path, ec)) && (file.schema.empty() || is_schema_of(path, file.schema));
  });
}

// Returns the names in the directory in alphabetical order. Without `all`, leaves out names that no user creates
// (unfinished files, locks, lost+found). Call it with `all` for a directory that will be replaced as a whole.
std::vector<std::string> entries_of(const fs::path& directory, bool all) {
  std::vector<std::string> names;
  try {
    for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename().string());
  } catch (const fs::filesystem_error& e) {
    throw Error(ErrorKind::kIo, directory.string() + ": cannot be read: " + e.code().message());
  }
  if (!all)
    std::erase_if(names, [](const std::string& name) {
      return name.ends_with(".partial") || name == ".lock" || name == "lost+found";
    });
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

void check_shared_directory(const fs::path& directory, const std::string& flag) {
  if (directory.empty()) throw Error(ErrorKind::kUsage, flag + ": found an empty name, expected a directory");
  std::error_code ec;
  fs::path place = fs::absolute(directory).lexically_normal();
  while (!fs::exists(fs::symlink_status(place, ec)) && place.has_relative_path()) place = place.parent_path();
  if (!fs::is_directory(place, ec))
    throw Error(ErrorKind::kUsage, flag + " " + directory.string() + ": " + place.string() +
                                       " is no directory: give a directory, or the name of a new one");
  // access() succeeds for root in /proc and /sys, where nobody can make a directory.
  struct statfs system{};
  if (::statfs(place.c_str(), &system) == 0 && (system.f_type == PROC_SUPER_MAGIC || system.f_type == SYSFS_MAGIC))
    io_error(flag + " " + directory.string(), "cannot be written below " + place.string(), EACCES);
  if (::access(place.c_str(), W_OK | X_OK) != 0)
    io_error(flag + " " + directory.string(), "cannot be written below " + place.string(), errno);
}

bool check_output_directory(const fs::path& directory, const OutputRule& rule) {
  check_shared_directory(directory, rule.flag);
  std::error_code ec;
  if (!fs::exists(directory, ec)) return false;
  // A symbolic link cannot be replaced as a whole: the new directory would replace the link and not the directory to
  // which the link points.
  if (rule.writes && fs::is_symlink(fs::symlink_status(directory, ec)))
    throw Error(ErrorKind::kUsage, rule.flag + " " + directory.string() + ": is a link: " + wanted(rule));
  const std::vector<std::string> names = entries_of(directory, static_cast<bool>(rule.writes));
  if (names.empty()) return false;
  const auto refuse = [&](const std::string& name, const std::string& why) {
    const std::string others = names.size() == 1 ? "" : " among " + std::to_string(names.size()) + " entries";
    throw Error(ErrorKind::kUsage,
                rule.flag + " " + directory.string() + ": has " + one_line(name) + others + why + ": " + wanted(rule));
  };
  if (!has_result(directory, rule))
    refuse(names.front(), rule.results.empty() ? "" : " and no result of " + rule.command);
  if (!rule.writes) return true;
  for (const std::string& name : names)
    if (!rule.writes(name)) refuse(name, ", which " + rule.command + " did not write and would remove");
  return true;
}

}  // namespace specdec
