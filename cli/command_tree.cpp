#include "cli/command_tree.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "base/version.h"

namespace specdec::cli {

namespace {

// Ends the name of a value that is a comma list, although its flag parses the list itself.
constexpr char kListMark[] = ",...";

// True for a word that is typed as it is, in contrast to a placeholder such as FILE or cuda:I.
bool is_literal(const std::string& alternative) {
  return !alternative.empty() && std::all_of(alternative.begin(), alternative.end(), [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '-' || c == '_' || c == '.';
  });
}

// Returns the files that a placeholder stands for.
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

// Fills in what the name of the value says. Alternatives are separated by |. Those in lower case are typed as they are,
// FILE, DIR and the like are paths, and other words stand for something that no shell can offer.
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

// CLI11 appends what a check such as IsMember says: "TEXT:{text,json}". A range such as "INT:1 to 9" is left to
// the parser.
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

const char* name_of(Offer offer) {
  return offer == Offer::kFiles ? "files" : offer == Offer::kDirectories ? "directories" : "none";
}

Json to_json(const Argument& a) {
  return {{"names", a.names},
          {"positional", a.positional},
          {"required", a.required},
          {"repeats", a.repeats},
          {"list", a.is_list},
          {"type", a.type},
          {"value", a.value},
          {"choices", a.choices},
          {"only_choices", a.only_choices},
          {"offer", name_of(a.offer)},
          {"help", a.help},
          {"group", a.group},
          {"default", a.default_value}};
}

}  // namespace

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
  Json commands = Json::array();
  for (const Command* command : with_subcommands(root)) {
    Json arguments = Json::array();
    for (const Argument& argument : command->arguments) arguments.push_back(to_json(argument));
    commands.push_back({{"command", command->words},
                        {"summary", command->summary},
                        {"footer", command->footer},
                        {"arguments", arguments},
                        {"group", !command->commands.empty()}});
  }
  return {
      {"schema", "specdec.commands/1"}, {"verdict", "done"}, {"tool_version", kToolVersion}, {"commands", commands}};
}

}  // namespace specdec::cli
