// Removes secrets from databases of older monitor versions. Versions 1 and 2 stored commands and URLs with their
// secrets, in a history that is never deleted.
#pragma once

#include <string>

namespace SQLite {
class Database;
}

namespace specdec::monitor {

// Returns the text with each URL replaced by its SecretUrl::shown().
std::string without_secrets(const std::string& text);

// Removes the secrets from every row, within the caller's transaction; the rest of each row stays. Throws
// SQLite::Exception.
void forget_secrets(SQLite::Database& db);

}  // namespace specdec::monitor
