// Removes personal data and secrets from text before anything is written: each piece of such data is replaced by a tag
// such as [EMAIL].
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/schema/traffic_record.h"
#include "data/redact/id_key.h"

namespace specdec::data {

using RedactionCounts = std::map<std::string, int64_t>;  // kind, such as "email" → number of replacements

// Returns the text with personal data and secrets replaced by tags, and adds the numbers of replacements to `counts`.
// It replaces, in this order, private keys (also truncated ones), webhook addresses and keys with known prefixes [KEY],
// JSON web tokens [JWT], passwords in URLs [KEY], e-mail addresses [EMAIL], IBANs with a valid checksum (ISO 13616, mod
// 97) [IBAN], card numbers with a valid Luhn digit [CARD], US social security numbers [SSN], IPv6 and IPv4 addresses
// [IP], phone numbers (+country, North American, national with a leading 0) [PHONE], and tokens that look random
// (data/redact/token_surprise.h) [KEY]. The IPv4 addresses 127.0.0.1, 0.0.0.0 and 255.255.255.255 stay. The search uses
// the normalised text (data/redact/normalised_text.h); all text that is not replaced stays as it was written. Time is
// linear in the length of the text (RE2). `text` must be valid UTF-8.
std::string redact(std::string_view text, RedactionCounts& counts);

// Redacts the content, thought and name of every message, and the prompt, response and text of the record. In tool
// calls, tools and the template's variables it redacts all strings and numbers, and the keys inside "arguments". If the
// id of a conversation, record or call contains personal data or a secret, the id is replaced by its digest under
// `key`, so that related rows stay related; an id that only looks random stays. Token ids are dropped if something in a
// message's content, the prompt, the response or the text was redacted. Throws Error(kData), without content, if tools
// or tool calls cannot be read or become longer than kMaxOrderedBytes.
void redact_record(TrafficRecord& record, const IdKey& key, RedactionCounts& counts);

}  // namespace specdec::data
