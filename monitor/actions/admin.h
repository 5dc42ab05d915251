// A client of the server's admin listener (docs/serve.md), which starts, promotes and drops trials of candidate drafts.
// judge_trial() decides from a trial's scores how the trial ends.
#pragma once

#include <string>

#include "base/json.h"
#include "net/http_client.h"

namespace specdec::monitor {

class Admin {
 public:
  // `address` is http(s)://host:port or unix:PATH. Throws Error(kUsage) for anything else.
  Admin(const std::string& address, const Secret& key);

  struct Reply {
    int status = 0;
    Json body;            // "specdec.draft/1" if the status is 200, else an error object
    std::string problem;  // the server's error message if the status is not 200
  };
  Reply drafts();                  // sends a GET; throws Error(kNetwork) if the server does not answer
  Reply order(const Json& order);  // sends a POST; throws as drafts() does

  // Makes the draft in the directory `draft` serve all conversations; `id` is its fingerprint. First drops another
  // draft that is on trial, then sends the orders still needed (none, promote, or load and promote). Returns "", or the
  // reason why the draft does not serve all conversations yet.
  std::string serve(const std::string& draft, const std::string& id);
  // Ends the draft's trial if there is one. Returns "", or the reason why that failed.
  std::string drop(const std::string& id);

 private:
  Reply exchange(const std::string* body);
  net::HttpClient client_;
  std::string url_, socket_;
  Secret key_;
};

// Returns the fingerprint of the draft under `which` ("serving" or "candidate") in a reply, "" if there is none.
std::string draft_id_of(const Json& status, const char* which);

// The decision of judge_trial(), and in `text` the scores that it rests on.
struct Trial {
  std::string decision, text;
};
// Decides how a trial ends, by the first of these rules that applies. "worse": the upper end of the interval of the
// candidate's acceptance is below `floor`. "better": the lower end of the interval of the paired difference (candidate
// minus serving draft) is above −margin. "worse": the upper end of this interval is below 0. "" if no rule applies: the
// trial goes on. The server's intervals stay valid however often they are read (betting confidence sequences over
// conversations; the difference is tested as (1 + difference) / 2).
Trial judge_trial(const Json& paired, double margin, double floor);

}  // namespace specdec::monitor
