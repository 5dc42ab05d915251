#include "cli/completion/scripts.h"

namespace specdec::cli {

namespace {

const char kHead[] = R"(# Completion of specdec for bash, written by `specdec completion bash`.
# shellcheck shell=bash
)";

// The part of the script that does not depend on the commands. `path` is the command that the words before the cursor
// have named, with a space before each word. For files and directories COMPREPLY stays empty, so that readline
// completes them with its own quoting.
const char kTail[] = R"(
_specdec_offer() {  # fills COMPREPLY from kind and words
  case $kind in
    files) compopt -o default ;;
    directories) compopt -o dirnames ;;
  esac
  [[ $words != *: ]] || compopt -o nospace
  local before=
  [[ $kind != list || $cur != *,* ]] || before=${cur%,*},
  [ -z "$words" ] || mapfile -t COMPREPLY < <(compgen -P "$before" -W "$words" -- "${cur#"$before"}")
}

_specdec() {
  local cur=${COMP_WORDS[COMP_CWORD]} path='' flag='' word='' kind='' words='' place=0 i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == = ]]; then
      continue  # bash splits --flag=value at the =
    elif [[ -n $flag ]]; then
      flag=
    elif [[ $word == -* ]]; then
      ! _specdec_value "$path" "$word" || flag=$word
    else
      _specdec_commands "$path"
      if [[ " $words " == *" $word "* ]]; then path+=" $word"; else place=$((place + 1)); fi
    fi
  done
  [[ $cur != = ]] || cur=
  kind='' words=''
  if [[ -n $flag ]]; then
    _specdec_value "$path" "$flag"
  elif [[ $cur == -* ]]; then
    _specdec_flags "$path"
  else
    _specdec_commands "$path"
    [[ -n $words ]] || _specdec_place "$path" "$place"
  fi
  _specdec_offer
}
complete -F _specdec specdec
)";

std::string path_of(const Command& command) { return command.words.empty() ? "" : " " + command.words; }

// Returns the shell assignments to `kind` and `words`, from which _specdec_offer() completes a value.
std::string offer_text(const Argument& argument) {
  const char* const kind = argument.is_list                        ? "list"
                           : argument.offer == Offer::kFiles       ? "files"
                           : argument.offer == Offer::kDirectories ? "directories"
                                                                   : "words";
  return std::string("kind=") + kind + " words=" + single_quoted(joined(argument.choices));
}

std::string cases(const char* name, const std::string& subject, const std::string& rows, const std::string& otherwise) {
  return std::string("\n") + name + "() {\n  case " + subject + " in\n" + rows + "    *) " + otherwise +
         " ;;\n  esac\n}\n";
}

}  // namespace

std::string bash_script(const Command& root) {
  std::string commands, flags, values, places;
  for (const Command* command : with_subcommands(root)) {
    const std::string path = path_of(*command);
    if (!command->commands.empty())
      commands += "    " + single_quoted(path) + ") words=" + single_quoted(joined(names_below(*command))) + " ;;\n";
    std::vector<std::string> names;
    for (const Argument* flag : offered_flags(root, *command)) {
      names.insert(names.end(), flag->names.begin(), flag->names.end());
      if (!flag->takes_value()) continue;
      std::string patterns;
      for (const std::string& name : flag->names)
        patterns += (patterns.empty() ? "" : " | ") + single_quoted(path + ":" + name);
      values += "    " + patterns + ") " + offer_text(*flag) + " ;;\n";
    }
    flags += "    " + single_quoted(path) + ") words=" + single_quoted(joined(names)) + " ;;\n";
    int place = 0;
    for (const Argument* argument : positionals(*command)) {
      const std::string which =
          argument->repeats ? single_quoted(path + ":") + "*" : single_quoted(path + ":" + std::to_string(place++));
      places += "    " + which + ") " + offer_text(*argument) + " ;;\n";
    }
  }
  return kHead + cases("_specdec_commands", "$1", commands, "words=''") +
         cases("_specdec_flags", "$1", flags, "words=''") + cases("_specdec_value", "$1:$2", values, "return 1") +
         cases("_specdec_place", "$1:$2", places, "words=''") + kTail;
}

}  // namespace specdec::cli
