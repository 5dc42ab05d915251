// The one rule for the directories that commands write: such a directory is missing, is empty, or has an earlier result
// of the same command. It is checked before any work, so that a refused command leaves nothing behind.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace specdec {

// An entry of a directory that only one command writes. With a `schema` ("validate") it must be a JSON file whose
// schema is "specdec.validate/N"; with "" it is enough that an entry of this name exists.
struct ResultFile {
  std::string name, schema;
};

struct OutputRule {
  std::string flag;                 // for messages, such as "--out"
  std::string command;              // for messages, such as "specdec validate"
  std::vector<ResultFile> results;  // one of these files marks an earlier result; empty = only a new or empty directory
  // Only for a command that replaces the whole directory: returns whether the command writes files of this name. A
  // directory with a file of another name is refused, because that file would be lost. Empty for a command that
  // replaces only its own files.
  std::function<bool(const std::string& name)> writes = {};
};

// Returns true if the directory has an earlier result of the command, false if it is new or empty. Files that a killed
// run left (*.partial), .lock and a volume's lost+found do not count, unless `writes` is set. Throws Error(kUsage) for
// any other directory, naming an entry that was found, and for a path that is no directory; Error(kIo) if this user may
// not write there.
bool check_output_directory(const std::filesystem::path& directory, const OutputRule& rule);

// Checks only that the path is a directory, or can become one, in which this user may write. Used for a directory that
// a command shares with others, such as the directory of `init`.
void check_shared_directory(const std::filesystem::path& directory, const std::string& flag);

}  // namespace specdec
