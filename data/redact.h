// Removes personal data and secrets from text before anything is written: each find becomes a tag such as [EMAIL].
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/schema/traffic_record.h"
#include "data/id_key.h"

namespace specdec::data {

using RedactionCounts = std::map<std::string, int64_t>;  // "email" → finds

// Finds, in this order: private keys (also truncated ones), webhook addresses, keys with known prefixes, passwords in
// URLs [KEY] and JSON web tokens [JWT], e-mail addresses [EMAIL], IBANs with a valid checksum (ISO 13616, mod 97)
// [IBAN], card numbers with a valid Luhn digit [CARD], US social security numbers [SSN], IPv6 and IPv4 addresses except
// loopback, "any" and broadcast [IP], phone numbers (+country, North American, national with a leading 0) [PHONE], and
// tokens that look random (data/token_surprise.h) [KEY]. The search sees the normalised text (data/normalised_text.h);
// all text outside of finds stays as it was written. Time is linear in the length of the text (RE2). `text` must be
// valid UTF-8.
std::string redact(std::string_view text, RedactionCounts& counts);

// Redacts content and name of every message, the values in its tool calls and in the tools (numbers, too; keys below
// "arguments"), prompt, response and text. An id of a conversation, record or call that holds a find is replaced by its
// digest under `key`, so that related rows stay related; an id that only looks random stays. Throws Error(kData),
// without content, if tools or tool calls cannot be read or become longer than kMaxOrderedBytes.
void redact_record(TrafficRecord& record, const IdKey& key, RedactionCounts& counts);

}  // namespace specdec::data
