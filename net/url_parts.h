// Parts of URLs as libcurl parses them. Only for net/.
#pragma once

#include <curl/curl.h>

#include <string>

namespace specdec::net {

std::string lower(std::string text);  // lower-cases ASCII letters
// Returns one part of `url`, such as its host, in lower case. If the URL names no port, the port is the default of its
// scheme. Returns "" if `url` is not a URL or lacks the part.
std::string part_of(const std::string& url, CURLUPart part);

}  // namespace specdec::net
