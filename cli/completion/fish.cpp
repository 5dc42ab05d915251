#include <set>

#include "cli/completion/scripts.h"

namespace specdec::cli {

namespace {

// Quotes a text for fish, which reads \\ and \' inside of single quotes.
std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += (c == '\'' || c == '\\' ? "\\" : "") + std::string(1, c);
  return quoted + "'";
}

// __specdec_at COMMAND is true if the words before the cursor name COMMAND. __specdec_valued lists the flags that take
// the next word as their value.
const char kFunction[] = R"(
function __specdec_at
    set -l path
    set -l is_value 0
    for word in (commandline -opc)[2..-1]
        if test $is_value = 1
            set is_value 0
        else if string match -q -- '-*' $word
            contains -- $word $__specdec_valued
            and set is_value 1
        else if contains -- (string join ' ' $path $word) $__specdec_commands
            set path $path $word
        end
    end
    test "$path" = "$argv"
end

complete -c specdec -f
)";

// Returns the arguments of fish's `complete` that describe the value of an argument.
std::string value_text(const Argument& argument, bool is_flag) {
  const std::string words = joined(argument.choices), needs = is_flag ? " -r" : "";
  if (argument.is_list && !words.empty()) return " -x -a " + fish_quoted("(__fish_append , " + words + ")");
  const std::string offered = words.empty() ? "" : " -a " + fish_quoted(words);
  if (argument.offer == Offer::kFiles) return needs + " -F" + offered;
  if (argument.offer == Offer::kDirectories)
    return needs + " -f -a " + fish_quoted("(__fish_complete_directories)" + (words.empty() ? "" : " " + words));
  return is_flag ? " -x" + offered : offered;
}

std::string flag_text(const std::string& at, const Argument& flag) {
  std::string names;
  for (const std::string& name : flag.names)
    names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  return "complete -c specdec -n " + at + names + (flag.takes_value() ? value_text(flag, true) : "") + " -d " +
         fish_quoted(flag.help) + "\n";
}

}  // namespace

std::string fish_script(const Command& root) {
  std::string commands, rows;
  std::set<std::string> valued;
  for (const Command* command : with_subcommands(root)) {
    if (!command->words.empty()) commands += " " + fish_quoted(command->words);
    const std::string at = fish_quoted("__specdec_at " + command->words);
    for (const Command& sub : command->commands)
      rows += "complete -c specdec -n " + at + " -a " + sub.words.substr(sub.words.rfind(' ') + 1) + " -d " +
              fish_quoted(sub.summary) + "\n";
    for (const Argument* flag : offered_flags(root, *command)) {
      rows += flag_text(at, *flag);
      if (flag->takes_value()) valued.insert(flag->names.begin(), flag->names.end());
    }
    for (const Argument* argument : positionals(*command))
      if (const std::string value = value_text(*argument, false); !value.empty())
        rows += "complete -c specdec -n " + at + value + " -d " + fish_quoted(argument->help) + "\n";
  }
  return "# Completion of specdec for fish, written by `specdec completion fish`.\nset -g __specdec_commands" +
         commands + "\nset -g __specdec_valued " + joined({valued.begin(), valued.end()}) + "\n" + kFunction + rows;
}

}  // namespace specdec::cli
