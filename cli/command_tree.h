// Describes every command and flag as plain data, read from the CLI11 objects that parse the command line. The help as
// JSON, the shell completion, the manual pages and the Python package are written from this description.
#pragma once

#include <string>
#include <vector>

#include "base/fields.h"

namespace CLI {
class App;
}

namespace specdec::cli {

// The value name of a positional argument that is a command of the program, as in `specdec help COMMAND`.
inline constexpr char kCommandName[] = "COMMAND";

// The files that a shell offers for a value. If a value may be a directory or a file, kFiles applies, because shells
// then offer directories, too.
enum class Offer { kNone, kDirectories, kFiles };

struct Argument {
  std::vector<std::string> names;  // "--out", "-v"; a positional argument has one name without dashes
  bool positional = false, required = false;
  bool repeats = false;  // true: may be given several times, or with several values
  bool is_list = false;  // true: the value is a comma-separated list
  std::string type;      // "flag" (no value), "integer", "number" or "text"
  std::string value;     // name of the value, as --help shows it: "DIR", "holdout|train|all"
  std::vector<std::string> choices = {};
  bool only_choices = false;  // true: the value must be one of `choices`
  Offer offer = Offer::kNone;
  std::string help, group, default_value;
  bool takes_value() const { return type != "flag"; }
};
void visit_fields(Fields& f, Argument& argument);

struct Command {
  std::string words;  // "data ingest"; "" for the program itself
  std::string summary, footer;
  std::vector<Argument> arguments;
  std::vector<Command> commands;
};

// Lists the program and its commands in the order of --help.
Command command_tree(const CLI::App& app);
// Returns the command with these words, or null if there is none.
const Command* find_command(const Command& root, const std::string& words);
// Returns the command itself and all below it, parents first.
std::vector<const Command*> with_subcommands(const Command& root);
// Writes the tree as a flat list of commands (schema specdec.commands/1).
Json to_json(const Command& root);

}  // namespace specdec::cli
