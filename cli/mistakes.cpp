#include "cli/mistakes.h"

#include <CLI/CLI.hpp>
#include <map>
#include <set>

#include "base/error.h"
#include "cli/suggestion.h"

namespace specdec::cli {

namespace {

// The chain of commands from the program itself down to the innermost command that the words have named so far.
using Levels = std::vector<const CLI::App*>;

// Returns the words of the command with a space before each: " data ingest", "" for the program itself.
std::string words_of(const Levels& levels) {
  std::string words;
  for (size_t i = 1; i < levels.size(); ++i) words += " " + levels[i]->get_name();
  return words;
}

std::string name_of(const Levels& levels) { return "specdec" + words_of(levels); }

[[noreturn]] void refuse(const Levels& levels, const std::string& what, const std::string& meant) {
  throw Error(ErrorKind::kUsage, what + (meant.empty() ? ": see " : ": did you mean " + meant + "? See ") +
                                     "specdec help" + words_of(levels));
}

const CLI::App* subcommand(const CLI::App& app, const std::string& word) {
  for (const CLI::App* sub : app.get_subcommands({}))
    if (sub->get_name() == word) return sub;
  return nullptr;
}

// Returns the names of the subcommands. CLI11 represents groups of flags as subcommands without a name; they are
// skipped.
std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({}))
    if (!sub->get_name().empty()) names.push_back(sub->get_name());
  return names;
}

// Maps words that other tools use to the commands and flags of specdec.
const std::map<std::string, std::string>& other_words() {
  static const std::map<std::string, std::string> kWords = {
      {"version", "--version"}, {"download", "fetch"},        {"train", "distill"}, {"eval", "validate"},
      {"evaluate", "validate"}, {"benchmark", "bench"},       {"start", "serve"},   {"server", "serve"},
      {"install", "fetch"},     {"completions", "completion"}};
  return kWords;
}

[[noreturn]] void refuse_command(const Levels& levels, const std::string& word) {
  const CLI::App& level = *levels.back();
  std::string meant = nearest(word, subcommand_names(level));
  const CLI::App& program = *levels.front();
  if (const auto other = other_words().find(word); meant.empty() && levels.size() == 1 && other != other_words().end())
    meant = other->second;
  if (meant.empty() && subcommand(program, word)) meant = word;
  for (const CLI::App* sub : program.get_subcommands({}))
    if (meant.empty() && subcommand(*sub, word)) meant = sub->get_name() + " " + word;
  const std::string command = (words_of(levels) + " " + word).substr(1);
  refuse(levels, "unknown command '" + command + "'", meant.empty() || meant[0] == '-' ? meant : "'" + meant + "'");
}

const CLI::Option* find_flag(const Levels& levels, const std::string& flag) {
  for (auto level = levels.rbegin(); level != levels.rend(); ++level)
    if (const CLI::Option* option = (*level)->get_option_no_throw(flag)) return option;
  return nullptr;
}

std::vector<std::string> flag_names(const Levels& levels) {
  std::vector<std::string> names;
  for (const CLI::App* level : levels)
    for (const CLI::Option* option : level->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back(name);
  return names;
}

void add_owners(const CLI::App& app, const std::string& path, const std::string& flag,
                std::vector<std::string>& owners) {
  for (const CLI::App* sub : app.get_subcommands({})) {
    const std::string name = path + " " + sub->get_name();
    if (sub->get_option_no_throw(flag)) owners.push_back(name);
    add_owners(*sub, name, flag, owners);
  }
}

[[noreturn]] void refuse_flag(const Levels& levels, const std::string& flag) {
  std::string meant = flag.starts_with("--") ? nearest(flag.substr(2), flag_names(levels)) : "";
  if (!meant.empty()) meant = "--" + meant;
  std::string what = flag + ": " + name_of(levels) + " has no such flag";
  std::vector<std::string> owners;
  if (flag.starts_with("--")) add_owners(*levels.front(), "specdec", flag, owners);
  if (!owners.empty())
    what += " (" + owners.front() + (owners.size() > 1 ? " and " + owners[1] : "") +
            (owners.size() == 1   ? " has it)"
             : owners.size() == 2 ? " have it)"
                                  : " have it, among others)");
  refuse(levels, what, meant);
}

bool is_flag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && (word[1] == '-' || std::isalpha(static_cast<unsigned char>(word[1])));
}

}  // namespace

void refuse_mistakes(const CLI::App& app, const std::vector<std::string>& arguments) {
  Levels levels = {&app};
  bool answers = false;  // whether --help or --version is given, which need no command
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") return;
    if (is_flag(word)) {
      const bool is_long = word[1] == '-';
      const std::string flag = is_long ? word.substr(0, word.find('=')) : word.substr(0, 2);
      const CLI::Option* option = find_flag(levels, flag);
      if (!option) refuse_flag(levels, flag);
      answers |= option == app.get_version_ptr() || option == levels.back()->get_help_ptr();
      const bool value_inside = word.size() > flag.size();
      if (option->get_items_expected_max() > 0 && !value_inside) ++i;
    } else if (!subcommand_names(*levels.back()).empty()) {
      const CLI::App* sub = subcommand(*levels.back(), word);
      if (!sub) refuse_command(levels, word);
      levels.push_back(sub);
    }
  }
  if (const auto names = subcommand_names(*levels.back());
      !answers && !names.empty() && levels.back()->get_require_subcommand_min() > 0) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    refuse(levels, name_of(levels) + ": no command given, expected one of " + list, "");
  }
}

void refuse_empty_names(const CLI::App& app) {
  static const std::set<std::string> kNames = {"against",
                                               "api-key-file",
                                               "baseline",
                                               "canary",
                                               "config",
                                               "data",
                                               "dir",
                                               "directory",
                                               "domain-rules",
                                               "draft",
                                               "file",
                                               "key",
                                               "messages",
                                               "model",
                                               "acceptance-log",
                                               "admin-key-file",
                                               "admin-socket",
                                               "html",
                                               "target-key-file",
                                               "tls-cert",
                                               "tls-key",
                                               "webhook-secret-file",
                                               "work",
                                               "holdout-src",
                                               "out",
                                               "package",
                                               "public-key",
                                               "record",
                                               "report",
                                               "salt",
                                               "source",
                                               "sources",
                                               "state",
                                               "store",
                                               "target",
                                               "target-files",
                                               "passphrase-file"};
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_lnames().empty() ? option->get_name(true) : option->get_lnames().front();
    if (!kNames.contains(name) || option->count() == 0) continue;
    for (const std::string& value : option->results())
      if (value.empty())
        throw Error(ErrorKind::kUsage, (option->get_lnames().empty() ? "" : "--") + name +
                                           ": found an empty name: give one, or leave it out");
  }
  for (const CLI::App* sub : app.get_subcommands()) refuse_empty_names(*sub);
}

std::string conversion_message(const std::string& message_of_cli11) {
  const std::string begin = "Could not convert: ";
  const size_t middle = message_of_cli11.find(" = ");
  if (!message_of_cli11.starts_with(begin) || middle == std::string::npos) return message_of_cli11;
  return message_of_cli11.substr(begin.size(), middle - begin.size()) + ": expected a number, found '" +
         message_of_cli11.substr(middle + 3) + "'";
}

std::string help_of(const CLI::App& app, const std::vector<std::string>& words) {
  Levels levels = {&app};
  std::string above;
  for (const std::string& word : words) {
    const CLI::App* sub = subcommand(*levels.back(), word);
    if (!sub) refuse_command(levels, word);
    above = name_of(levels);
    levels.push_back(sub);
  }
  return levels.back()->help(above);
}

}  // namespace specdec::cli
