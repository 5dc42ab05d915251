#include "cli/completion/scripts.h"

namespace specdec::cli {

namespace {

// Returns the name of the zsh function for a command: "_specdec_data_ingest".
std::string function_of(const Command& command) {
  std::string name = "_specdec" + std::string(command.words.empty() ? "" : "_") + command.words;
  for (char& c : name)
    if (c == ' ' || c == '-') c = '_';
  return name;
}

// Escapes the characters that are special to zsh's _arguments and _describe.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += (c == '[' || c == ']' || c == ':' || c == '\\' ? "\\" : "") + std::string(1, c);
  return out;
}

// Returns the part of an _arguments specification that describes the value: ":NAME:ACTION".
std::string value_text(const Argument& argument) {
  const std::string choices = escaped(joined(argument.choices));
  const std::string files = argument.offer == Offer::kNone    ? ""
                            : argument.offer == Offer::kFiles ? "_files"
                                                              : "_files -/";
  std::string action = files.empty() ? " " : files;
  if (argument.is_list && !choices.empty())
    action = "_values -s , value " + choices;
  else if (argument.only_choices)
    action = "(" + choices + ")";
  else if (!choices.empty())
    action = "{compadd -S \"\" -- " + choices + (files.empty() ? "" : "; " + files) + "}";
  return ":" + escaped(argument.value) + ":" + action;
}

std::string specification(const Argument& flag, const std::string& name) {
  const bool is_long = name.starts_with("--");
  return single_quoted((flag.repeats ? "*" : "") + name + (flag.takes_value() ? is_long ? "=" : "+" : "") + "[" +
                       escaped(flag.help) + "]" + (flag.takes_value() ? value_text(flag) : ""));
}

std::string function_text(const Command& root, const Command& command) {
  std::string text = function_of(command) + "() {\n";
  const bool is_group = !command.commands.empty();
  if (is_group) text += "  local context state state_descr line\n  typeset -A opt_args\n";
  text += is_group ? "  _arguments -C" : "  _arguments";
  for (const Argument* flag : offered_flags(root, command))
    for (const std::string& name : flag->names) text += " \\\n    " + specification(*flag, name);
  int place = 1;
  for (const Argument* argument : positionals(command)) {
    const std::string which = argument->repeats ? "*" : std::to_string(place++);
    text += " \\\n    " + single_quoted(which + value_text(*argument));
  }
  if (!is_group) return text + "\n}\n\n";
  text += " \\\n    '1: :->command' \\\n    '*:: :->rest'\n  case $state in\n    command)\n      local -a commands=(\n";
  for (const Command& sub : command.commands)
    text += "        " + single_quoted(sub.words.substr(sub.words.rfind(' ') + 1) + ":" + escaped(sub.summary)) + "\n";
  text += "      )\n      _describe command commands\n      ;;\n    rest)\n      case $line[1] in\n";
  for (const Command& sub : command.commands)
    text += "        " + sub.words.substr(sub.words.rfind(' ') + 1) + ") " + function_of(sub) + " ;;\n";
  return text + "      esac\n      ;;\n  esac\n}\n\n";
}

}  // namespace

std::string zsh_script(const Command& root) {
  std::string text = "#compdef specdec\n# Completion of specdec for zsh, written by `specdec completion zsh`.\n\n";
  for (const Command* command : with_subcommands(root)) text += function_text(root, *command);
  // If zsh loads this file from fpath, the file is the body of _specdec and must call it; if a shell sources the file,
  // it only registers _specdec.
  return text + "if [ \"$funcstack[1]\" = _specdec ]; then\n  _specdec \"$@\"\nelse\n  compdef _specdec specdec\nfi\n";
}

}  // namespace specdec::cli
