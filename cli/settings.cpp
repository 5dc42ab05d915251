#include "cli/settings.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "cli/suggestion.h"
#include "cli/toml_file.h"

namespace specdec::cli {

namespace {

std::string env_name(const std::string& text) {
  std::string result;
  for (char c : text)
    result += c == '-' || c == ' ' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return "SPECDEC_" + result;
}

std::string suggestion(const std::string& key, const std::vector<std::string>& known) {
  const std::string meant = nearest(key, known);
  return meant.empty() ? "" : " (did you mean '" + meant + "'?)";
}

std::vector<std::string> long_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (name != "help" && name != "config" && name != "version") names.push_back(name);
  return names;
}

std::string scalar_text(const toml::node& node, const std::string& where) {
  if (const auto text = node.value<std::string>(); text && node.is_string()) return *text;
  if (node.is_integer()) return std::to_string(*node.value<int64_t>());
  if (node.is_floating_point()) return format("%.17g", *node.value<double>());
  if (node.is_boolean()) return *node.value<bool>() ? "true" : "false";
  throw Error(ErrorKind::kConfig, where + ": expected a string, number or boolean");
}

// Returns a table's value for an option as text; a list becomes one line per item. Returns nullopt if the table has no
// such value.
std::optional<std::string> value_in(const toml::table* table, const std::string& key, const std::string& file) {
  if (table == nullptr) return std::nullopt;
  const toml::node* node = table->get(key);
  if (node == nullptr) return std::nullopt;
  if (const toml::array* array = node->as_array()) {
    std::string joined;
    for (const toml::node& item : *array) joined += (joined.empty() ? "" : "\n") + scalar_text(item, file + ": " + key);
    return joined;
  }
  return scalar_text(*node, file + ": " + key);
}

void check_keys(const CLI::App& app, const toml::table& root, const std::string& file) {
  std::vector<std::string> commands, shared;
  for (const CLI::App* sub : app.get_subcommands({})) {
    commands.push_back(sub->get_name());
    const auto options = long_options(*sub);
    shared.insert(shared.end(), options.begin(), options.end());
  }
  const auto global = long_options(app);
  shared.insert(shared.end(), global.begin(), global.end());
  for (const auto& [key_node, node] : root) {
    const std::string key(key_node.str());
    if (const toml::table* table = node.as_table()) {
      if (std::find(commands.begin(), commands.end(), key) == commands.end())
        throw Error(ErrorKind::kConfig, file + ": unknown table [" + key + "]" + suggestion(key, commands));
      std::vector<std::string> known = long_options(*app.get_subcommand(key));
      for (const CLI::App* nested : app.get_subcommand(key)->get_subcommands({})) {
        const auto options = long_options(*nested);
        known.insert(known.end(), options.begin(), options.end());
      }
      for (const auto& [name_node, value] : *table) {
        const std::string name(name_node.str());
        if (std::find(known.begin(), known.end(), name) == known.end())
          throw Error(ErrorKind::kConfig,
                      file + ": [" + key + "] unknown key '" + name + "'" + suggestion(name, known));
      }
    } else if (std::find(shared.begin(), shared.end(), key) == shared.end()) {
      throw Error(ErrorKind::kConfig, file + ": unknown key '" + key + "'" + suggestion(key, shared));
    }
  }
}

void apply_to(CLI::App& app, const std::string& command, const toml::table& root, const std::string& file,
              SettingOrigins& origins) {
  const std::string table_name = command.substr(0, command.find(' '));
  const toml::table* table = command.empty() ? nullptr : root[table_name].as_table();
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string name = option->get_lnames().front();
    if (name == "help" || name == "config" || name == "version") continue;
    const std::string own = env_name(command.empty() ? name : command + " " + name), shared = env_name(name);
    std::optional<std::string> in_file = value_in(table, name, file);
    std::string origin = file + ": " + (in_file ? "[" + table_name + "] " : "") + name;
    // [serve] is the table of a command, not the value of the flag of the same name (monitor check --serve).
    if (!in_file && !root[name].is_table()) in_file = value_in(&root, name, file);
    // A list is passed in the environment as one string, because the engine process reads it again. Its items are
    // separated by the option's delimiter, or by newlines if the option has none.
    const char delimiter = option->get_delimiter();
    if (in_file && delimiter != '\0') std::replace(in_file->begin(), in_file->end(), '\n', delimiter);
    std::optional<std::string> value = in_file;
    if (const char* found = std::getenv(own.c_str()) ? std::getenv(own.c_str()) : std::getenv(shared.c_str())) {
      value = found;
      // `specdec` passes the file's values to the engine process as variables. Errors must still name the file as their
      // origin.
      if (value != in_file) origin = std::getenv(own.c_str()) ? own : shared;
    }
    if (!value) continue;
    origins["--" + name] = origin;
    if (delimiter == '\0' && option->get_items_expected_max() > 1 && value->find('\n') != std::string::npos)
      option->delimiter('\n');
    // CLI11 treats a value from the environment as given: it satisfies a required option, and a flag overrides it.
    ::setenv(own.c_str(), value->c_str(), 1);
    option->envname(own);
  }
}

}  // namespace

SettingOrigins apply_settings(CLI::App& app, int argc, char** argv) {
  std::string file = std::getenv("SPECDEC_CONFIG") ? std::getenv("SPECDEC_CONFIG") : "";
  std::vector<CLI::App*> chain;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--config" && i + 1 < argc) file = argv[++i];
    if (argument.rfind("--config=", 0) == 0) file = argument.substr(9);
    CLI::App* level = chain.empty() ? &app : chain.back();
    for (CLI::App* sub : level->get_subcommands({}))
      if (sub->get_name() == argument) {
        chain.push_back(sub);
        break;
      }
  }
  toml::table root;
  if (!file.empty()) {
    root = read_toml(file);
    check_keys(app, root, file);
  }
  SettingOrigins origins;
  apply_to(app, "", root, file, origins);
  std::string command;
  for (CLI::App* sub : chain) {
    command += (command.empty() ? "" : " ") + sub->get_name();
    apply_to(*sub, command, root, file, origins);
  }
  return origins;
}

std::string named_by_origin(const std::string& message, const SettingOrigins& origins,
                            const std::vector<std::string>& arguments) {
  const size_t end = message.find_first_of(": ");
  const auto origin = origins.find(message.substr(0, end));
  if (origin == origins.end()) return message;
  const std::string& flag = origin->first;
  const auto gives = [&](const std::string& word) { return word == flag || word.starts_with(flag + "="); };
  if (std::any_of(arguments.begin(), arguments.end(), gives)) return message;
  return origin->second + message.substr(end);
}

std::vector<std::string> unknown_variables(const CLI::App& app, const std::string& command,
                                           const std::vector<std::string>& environment) {
  std::vector<std::string> known, warnings;
  const std::function<void(const CLI::App&, const std::string&)> add = [&](const CLI::App& level,
                                                                           const std::string& words) {
    for (const std::string& name : long_options(level)) known.push_back(env_name(words + " " + name));
    for (const CLI::App* sub : level.get_subcommands({}))
      add(*sub, words + (sub->get_name().empty() ? "" : " " + sub->get_name()));  // groups of flags have no name
  };
  const std::string first = command.substr(0, command.find(' ')), begin = env_name(first) + "_";
  if (first.empty()) return {};
  add(*app.get_subcommand(first), first);
  for (std::string& name : known) name.erase(0, begin.size());
  for (const std::string& variable : environment) {
    if (!variable.starts_with(begin)) continue;
    const std::string name = variable.substr(begin.size(), variable.find('=') - begin.size());
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string meant = nearest(name, known);
    warnings.push_back(begin + name + " sets nothing" +
                       (meant.empty() ? "" : " (did you mean " + begin + meant + "?)"));
  }
  return warnings;
}

}  // namespace specdec::cli
