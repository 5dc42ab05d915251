// Parts of URLs as libcurl reads them. For net/ alone.
#pragma once

#include <curl/curl.h>

#include <string>

namespace specdec::net {

std::string lower(std::string text);                          // ASCII
std::string part_of(const std::string& url, CURLUPart part);  // in lower case, the port by default; "" if it is no URL

}  // namespace specdec::net
