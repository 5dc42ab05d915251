// Finds mistyped commands and flags before the command line is parsed, so that the error message names the mistake
// first and suggests what may have been meant.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace specdec::cli {

// Throws Error(kUsage) for the first word of `arguments` that should be a command or a flag of `app` but is not.
void refuse_mistakes(const CLI::App& app, const std::vector<std::string>& arguments);

// Throws Error(kUsage) if an option that names a file, a directory or a model has the value "". That happens when a
// variable of a script is unset, and the command must not run as if the option had been left out.
void refuse_empty_names(const CLI::App& app);

// Returns the message of an option whose value could not be converted to a number.
std::string conversion_message(const std::string& message_of_cli11);

// Returns the help of the command that `words` name, such as {"data", "ingest"}; the general help without words.
// Throws Error(kUsage) if there is no such command.
std::string help_of(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace specdec::cli
