#include "cli/command_tree.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "base/version.h"
#include "cli/results.h"

namespace specdec::cli {

namespace {

// If the name of a flag's value ends with this suffix, as in "K,...", the value is a comma-separated list.
constexpr char kListMark[] = ",...";

// Returns whether the user types the word as it is, in contrast to a placeholder such as FILE or cuda:I.
bool is_literal(const std::string& alternative) {
  return !alternative.empty() && std::all_of(alternative.begin(), alternative.end(), [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '-' || c == '_' || c == '.';
  });
}

// Returns which files a shell offers for a placeholder such as FILE or DIR.
Offer offer_of(const std::string& placeholder) {
  static const std::map<std::string, Offer> kOffers = {{"FILE", Offer::kFiles},
                                                       {"PATH", Offer::kFiles},
                                                       {"DIR", Offer::kDirectories},
                                                       {"MODEL", Offer::kDirectories},
                                                       {"PACKAGE", Offer::kDirectories},
                                                       {"STORE", Offer::kDirectories},
                                                       {"STORE:CHANNEL", Offer::kDirectories}};
  const auto found = kOffers.find(placeholder);
  return found == kOffers.end() ? Offer::kNone : found->second;
}

// Sets the members of `argument` that follow from the name of its value. The name has alternatives separated by |. A
// word in lower case is typed as it is. FILE, DIR and similar words stand for paths. For all other words a shell offers
// nothing.
void read_value_name(Argument& argument) {
  std::string name = argument.value;
  if (name.ends_with(kListMark)) {
    argument.is_list = true;
    name.resize(name.size() - std::string(kListMark).size());
  }
  argument.only_choices = true;
  for (const std::string& alternative : CLI::detail::split(name, '|')) {
    const size_t colon = alternative.find(':');
    if (is_literal(alternative)) {
      argument.choices.push_back(alternative);
      continue;
    }
    argument.only_choices = false;
    if (colon != std::string::npos && is_literal(alternative.substr(0, colon)))
      argument.choices.push_back(alternative.substr(0, colon + 1));
    else
      argument.offer = std::max(argument.offer, offer_of(alternative));
  }
  argument.only_choices = argument.only_choices && !argument.choices.empty();
}

// Reads CLI11's name of a type, to which a check such as IsMember has appended its values: "TEXT:{text,json}". A range
// such as "INT:1 to 9" is left to the parser.
void read_type_name(Argument& argument, const std::string& name) {
  const std::string type = name.substr(0, name.find(':'));
  const bool is_integer = type == "INT" || type == "UINT", is_number = type == "FLOAT";
  argument.type = is_integer ? "integer" : is_number ? "number" : "text";
  argument.value = is_integer || is_number ? "N" : name;
  const size_t open = name.find(":{"), end = name.find('}');
  if (open != std::string::npos && end != std::string::npos) {
    argument.value = name.substr(open + 2, end - open - 2);
    std::replace(argument.value.begin(), argument.value.end(), ',', '|');
  }
  if (argument.type == "text") read_value_name(argument);
}

Argument describe(const CLI::Option& option) {
  Argument argument;
  argument.positional = option.get_positional() && option.get_lnames().empty() && option.get_snames().empty();
  for (const std::string& name : option.get_snames()) argument.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) argument.names.push_back("--" + name);
  if (argument.positional) argument.names = {option.get_name(true)};
  argument.required = option.get_required();
  argument.help = option.get_description();
  std::replace(argument.help.begin(), argument.help.end(), '\n', ' ');
  argument.group = option.get_group();
  argument.default_value = option.get_default_str();
  argument.type = "flag";
  if (option.get_items_expected_max() > 0) {
    argument.repeats =
        option.get_items_expected_max() > 1 || option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
    read_type_name(argument, option.get_type_name());
    argument.is_list = argument.is_list || option.get_delimiter() == ',';
  }
  return argument;
}

Command describe(const CLI::App& app, const std::string& words) {
  Command command{words, app.get_description(), app.get_footer(), {}, {}};
  for (const CLI::Option* option : app.get_options()) command.arguments.push_back(describe(*option));
  for (const CLI::App* sub : app.get_subcommands({}))
    if (!sub->get_name().empty())
      command.commands.push_back(describe(*sub, words + (words.empty() ? "" : " ") + sub->get_name()));
  return command;
}

constexpr Named<Offer> kOffers[] = {
    {Offer::kNone, "none"}, {Offer::kFiles, "files"}, {Offer::kDirectories, "directories"}};

// One command, without its subcommands.
struct CommandEntry {
  std::string command, summary, footer;
  std::vector<Argument> arguments;
  bool group = false;
};
void visit_fields(Fields& f, CommandEntry& entry) {
  f.type("CommandDescription", "A command; `group` says that it has commands below it.");
  f("command", entry.command);
  f("summary", entry.summary);
  f("footer", entry.footer);
  f("arguments", entry.arguments);
  f("group", entry.group);
}

struct CommandList {
  std::vector<CommandEntry> commands;
};
void visit_fields(Fields& f, CommandList& list) {
  f.type("Commands", "All commands and flags, as `specdec --json help` prints them.");
  f.schema("commands", 1);
  f.constant("verdict", "done");
  std::string version = kToolVersion;
  f("tool_version", version);
  f("commands", list.commands);
}

}  // namespace

void visit_fields(Fields& f, Argument& a) {
  f.type("CommandArgument", "A flag or a positional argument.");
  f("names", a.names);
  f("positional", a.positional);
  f("required", a.required);
  f("repeats", a.repeats);
  f("list", a.is_list);
  f.one_of("type", a.type, {"flag", "integer", "number", "text"});
  f("value", a.value);
  f("choices", a.choices);
  f("only_choices", a.only_choices);
  f.one_of("offer", a.offer, kOffers);
  f("help", a.help);
  f("group", a.group);
  f("default", a.default_value);
}

Command command_tree(const CLI::App& app) {
  Command root = describe(app, "");
  std::vector<std::string> names;
  for (const Command& command : root.commands) names.push_back(command.words);
  for (Command& command : root.commands)
    for (Argument& argument : command.arguments)
      if (argument.positional && argument.value == kCommandName) argument.choices = names;
  return root;
}

Json to_json(const Command& root) {
  CommandList list;
  for (const Command* command : with_subcommands(root))
    list.commands.push_back(
        {command->words, command->summary, command->footer, command->arguments, !command->commands.empty()});
  return json_of(list);
}

void describe_commands(Results& results) { results.add<CommandList>(); }

}  // namespace specdec::cli
