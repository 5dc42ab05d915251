// Versions 1 and 2 of the monitor's database held commands and URLs with what is secret in them, in history that
// nothing is deleted from.
#pragma once

#include <string>

namespace SQLite {
class Database;
}

namespace specdec::monitor {

// Returns the text with each of its URLs replaced by what SecretUrl::shown() gives for it.
std::string without_secrets(const std::string& text);

// Takes them out of every row, inside the caller's transaction; what else the rows say stays. Throws SQLite::Exception.
void forget_secrets(SQLite::Database& db);

}  // namespace specdec::monitor
