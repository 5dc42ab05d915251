// Implements `specdec manual [COMMAND...] [--out DIR]`.
#include "cli/manual.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/version.h"
#include "cli/command.h"

namespace specdec::cli {

namespace {

// Escapes a text for troff. The pages are UTF-8, so only troff's own special characters are escaped.
std::string troff(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  return out;
}

// Returns the text as a line of its own. \& keeps troff from reading a leading dot or quote as a request.
std::string line(const std::string& text) {
  return (text.starts_with('.') || text.starts_with('\'') ? "\\&" : "") + troff(text) + "\n";
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string full_name(const Command& command) { return "specdec" + (command.words.empty() ? "" : " " + command.words); }

std::string bold(const std::string& text) { return "\\fB" + troff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + troff(text) + "\\fR"; }

std::string synopsis(const Command& command) {
  std::string text = bold(full_name(command)) + " [" + italic("flags") + "]";
  for (const Argument& argument : command.arguments)
    if (argument.positional) {
      const std::string name = italic(argument.names.front()) + (argument.repeats ? "..." : "");
      text += " " + (argument.required ? name : "[" + name + "]");
    }
  return text + (command.commands.empty() ? "" : " " + italic("command")) + "\n";
}

std::string item(const Argument& argument) {
  std::string names;
  for (const std::string& name : argument.names)
    names += (names.empty() ? "" : ", ") + (argument.positional ? italic(name) : bold(name));
  if (argument.takes_value() && !argument.positional) names += " " + italic(argument.value);
  if (argument.is_list && !argument.value.ends_with("...")) names += ",...";
  std::string text = argument.help;
  if (!argument.default_value.empty()) text += (text.empty() ? "" : ". ") + ("Default: " + argument.default_value);
  return ".TP\n" + names + "\n" + line(text + (argument.required ? " (required)" : ""));
}

// Writes the arguments in one section for each group, the ungrouped ones first.
std::string options(const Command& command) {
  std::vector<std::string> groups;
  for (const Argument& a : command.arguments)
    if (!a.positional && std::find(groups.begin(), groups.end(), a.group) == groups.end()) groups.push_back(a.group);
  std::string text;
  for (const Argument& a : command.arguments)
    if (a.positional) text += item(a);
  if (!text.empty()) text = ".SH ARGUMENTS\n" + text;
  text += ".SH OPTIONS\n";
  for (const std::string& group : groups) {
    if (group != groups.front()) text += ".SS \"" + troff(group) + "\"\n";
    for (const Argument& a : command.arguments)
      if (!a.positional && a.group == group) text += item(a);
  }
  return text;
}

// Turns the footer of --help into sections: an indented block for each heading such as "Examples:", and for the exit
// codes.
std::string sections(const std::string& footer) {
  std::string text, row;
  bool is_block = false;
  for (std::istringstream rows(footer); std::getline(rows, row);) {
    const bool is_heading = row == "Examples:" || row == "Example:";
    const bool is_indented = row.starts_with("  ");
    if (is_block && !is_indented) text += ".fi\n.RE\n";
    if (is_indented && !is_block) text += ".RS 2\n.nf\n";
    is_block = is_indented;
    const std::string codes = "Exit codes: ";
    if (is_heading)
      text += ".SH EXAMPLES\n";
    else if (row.starts_with(codes))
      text += ".SH EXIT STATUS\n" + line(row.substr(codes.size()));
    else if (is_indented)
      text += line(row.substr(2));
    else
      text += ".PP\n" + line(row);
  }
  return text + (is_block ? ".fi\n.RE\n" : "");
}

// Returns the SEE ALSO entries of a page: the pages of the parent command and of the subcommands.
std::string see_also(const Command& root, const Command& command) {
  std::vector<std::string> pages;
  if (!command.words.empty()) {
    const size_t space = command.words.rfind(' ');
    pages.push_back(page_name(space == std::string::npos ? root : *find_command(root, command.words.substr(0, space))));
  }
  for (const Command& sub : command.commands) pages.push_back(page_name(sub));
  if (pages.empty()) return "";
  std::string text = ".SH SEE ALSO\n";
  for (const std::string& page : pages)
    text += ".BR " + troff(page) + " (1)" + (&page == &pages.back() ? "" : ",") + "\n";
  return text;
}

std::string environment(const Command& command) {
  std::string name = upper(command.words);
  std::replace(name.begin(), name.end(), ' ', '_');
  const std::string own = "SPECDEC_" + (name.empty() ? "" : name + "_") + "FLAG";
  return ".SH ENVIRONMENT\n.TP\n" + bold(own) + (name.empty() ? "" : ", " + bold("SPECDEC_FLAG")) + "\n" +
         line("Value of a flag that the command line does not give: the flag's name in upper case, with _ for -.") +
         ".TP\n" + bold("SPECDEC_CONFIG") + "\n" + line("The settings file, as --config.");
}

int write_pages(const Command& root, const std::string& directory) {
  const PublicFiles for_all_readers;
  make_directories(directory);
  for (const Command* command : with_subcommands(root))
    write_file_atomic(fs::path(directory) / (page_name(*command) + ".1"), manual_page(root, *command));
  return 0;
}

}  // namespace

std::string page_name(const Command& command) {
  std::string name = full_name(command);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string manual_page(const Command& root, const Command& command) {
  std::string text = ".\\\" Written by `specdec manual`.\n.TH " + troff(upper(page_name(command))) +
                     " 1 \"\" \"specdec " + kToolVersion + "\" \"specdec manual\"\n.SH NAME\n" +
                     troff(page_name(command)) + " \\- " + troff(command.summary) + "\n.SH SYNOPSIS\n" +
                     synopsis(command) + ".SH DESCRIPTION\n" +
                     line(command.summary + (command.summary.ends_with('.') ? "" : "."));
  if (!command.commands.empty()) text += ".SH COMMANDS\n";
  for (const Command& sub : command.commands) text += ".TP\n" + bold(full_name(sub)) + "\n" + line(sub.summary);
  text += options(command);
  if (!command.words.empty())
    text += ".PP\n" + line("The flags of specdec(1) itself may be given, too, before the command or after it.");
  return text + sections(command.footer) + environment(command) + see_also(root, command);
}

void add_manual(Cli& cli) {
  CLI::App* sub = cli.app.add_subcommand("manual", "Prints the manual page of a command, for man");
  auto words = std::make_shared<std::vector<std::string>>();
  auto out = std::make_shared<std::string>();
  sub->add_option("command", *words, "Words of the command, such as data ingest; none: the program itself")
      ->type_name(kCommandName);
  sub->add_option("--out", *out, "Write the pages of all commands to this directory instead")->type_name("DIR");
  sub->footer("Examples:\n  specdec manual monitor check | man -l -\n  specdec manual --out ~/.local/share/man/man1");
  sub->callback([&cli, words, out] {
    cli.selected = [&cli, words, out] {
      const Command root = command_tree(cli.app);
      if (!out->empty()) return write_pages(root, *out);
      std::string name;
      for (const std::string& word : *words) name += (name.empty() ? "" : " ") + word;
      const Command* command = find_command(root, name);
      if (!command)
        throw Error(ErrorKind::kUsage, "unknown command '" + name + "': specdec help --json lists all commands");
      std::fputs(manual_page(root, *command).c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace specdec::cli
