#include "cli/completion/scripts.h"

#include <algorithm>

namespace specdec::cli {

std::string single_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::vector<const Argument*> positionals(const Command& command) {
  std::vector<const Argument*> found;
  for (const Argument& argument : command.arguments)
    if (argument.positional) found.push_back(&argument);
  return found;
}

std::vector<std::string> names_below(const Command& command) {
  std::vector<std::string> names;
  for (const Command& sub : command.commands) names.push_back(sub.words.substr(sub.words.rfind(' ') + 1));
  return names;
}

std::vector<const Argument*> offered_flags(const Command& root, const Command& command) {
  std::vector<const Argument*> flags;
  for (const Command* level : {&command, &root})
    for (const Argument& argument : level->arguments) {
      const bool is_known =
          std::any_of(flags.begin(), flags.end(), [&](const Argument* flag) { return flag->names == argument.names; });
      // Only the program itself accepts --version; its subcommands do not.
      const bool is_foreign = level != &command && argument.names.back() == "--version";
      if (!argument.positional && !is_known && !is_foreign) flags.push_back(&argument);
    }
  return flags;
}

}  // namespace specdec::cli
