------------------------------- MODULE Chain -------------------------------
(* The chain of done markers of one Kafka partition, its writers, loaders and *)
(* operator. README.md says what is left out and which code each action       *)
(* stands for.                                                                *)
(*                                                                            *)
(* The consumer group is not modelled: every writer believes at any time that *)
(* the partition is its own. So each of them is a zombie to the others, and   *)
(* nothing rests on Kafka's fencing.                                          *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Writers, Loaders,
  End,            \* Kafka holds the records [0, End)
  Lengths,        \* how many positions a flush may cover
  MostFaults,     \* how often processes die, or give a request up
  MostLate,       \* claims that nobody waits for any more, and that may still arrive
  MostRewinds,    \* an operator's
  Broken          \* the one rule that is not kept, or "nothing"

VARIABLES
  done,           \* the markers in the stage, at most one of a name
  aside,          \* the names that an operator has put aside: copies below stray/
  late,           \* claims that may arrive at any later time
  writer, loader,
  rewind,         \* what an operator is doing
  position,       \* the table's txn action: the next position wanted
  rows,           \* how often the table has each position
  faults, rewinds,
  trunk           \* for the properties: the markers of the one true chain

vars == <<done, aside, late, writer, loader, rewind, position, rows, faults, rewinds, trunk>>

Nowhere == End + 1
NoMarker == [start |-> Nowhere, end |-> Nowhere, previous |-> Nowhere, by |-> "nobody"]

Name(marker) == IF Broken = "names are starts" THEN marker.end ELSE marker.start
Names(markers) == {Name(marker) : marker \in markers}
Starts(markers) == {marker.start : marker \in markers}
Highest(markers) == CHOOSE marker \in markers : \A other \in markers : Name(other) <= Name(marker)
EndOf(markers) == (CHOOSE marker \in markers : \A other \in markers : other.end <= marker.end).end
Linked(marker, markers) == \E other \in markers : other.start = marker.previous /\ other.end = marker.start
Lowest(markers) == CHOOSE marker \in markers : \A other \in markers : Name(other) >= Name(marker)
HasName(markers, name) == \E marker \in markers : Name(marker) = name

Away == [phase |-> "away", tail |-> NoMarker, at |-> Nowhere, claim |-> NoMarker]
Idle == [phase |-> "idle", plan |-> NoMarker, from |-> Nowhere, going |-> {}, top |-> NoMarker]
NoRewind == [phase |-> "none", going |-> {}, gone |-> {}]

Init ==
  /\ done = {} /\ aside = {} /\ late = {}
  /\ writer = [w \in Writers |-> Away]
  /\ loader = [l \in Loaders |-> Idle]
  /\ rewind = NoRewind
  /\ position = 0 /\ rows = [p \in 0..(End - 1) |-> 0]
  /\ faults = 0 /\ rewinds = 0 /\ trunk = {}

------------------------------------------------------------------------------
(* The store. *)

\* Of the true chain; that it vanished stays known.
Left(markers) == IF markers = {} /\ trunk # {} THEN {NoMarker} ELSE markers
Vanished == NoMarker \in trunk

Free(claim) == ~HasName(done, Name(claim)) \/ Broken = "a claim is exclusive"

Created(claim) ==
  /\ done' = {marker \in done : Name(marker) # Name(claim)} \cup {claim}
  /\ trunk' = IF trunk = {} \/ claim.start = EndOf(trunk)
              THEN (trunk \cap done') \cup {claim}
              ELSE Left(trunk \cap done')

\* One goes, and what goes on from it is none of the true chain's.
Undone(marker) ==
  trunk' = Left(IF marker \in trunk THEN {other \in trunk : other.end <= marker.start} ELSE trunk \cap done')

Unchanged(claim) == UNCHANGED <<done, trunk>>

------------------------------------------------------------------------------
(* Writers. *)

ReadChain(w) ==
  /\ writer[w].phase = "away"
  /\ LET tail == IF done = {} THEN NoMarker ELSE Highest(done)
         at == IF done = {} THEN 0 ELSE tail.end
     IN writer' = [writer EXCEPT ![w] = [phase |-> "ready", tail |-> tail, at |-> at, claim |-> NoMarker]]
  /\ UNCHANGED <<done, aside, late, loader, rewind, position, rows, faults, rewinds, trunk>>

Send(w) ==
  /\ writer[w].phase = "ready" /\ writer[w].at < End
  /\ \E end \in {writer[w].at + length : length \in Lengths} \cap (0..End) :
       writer' = [writer EXCEPT ![w].phase = "sent", ![w].claim =
         [start |-> writer[w].at, end |-> end, previous |-> writer[w].tail.start, by |-> w]]
  /\ UNCHANGED <<done, aside, late, loader, rewind, position, rows, faults, rewinds, trunk>>

\* Records never end in Kafka as they do here: the next one brings a claim that is withdrawn, and this.
NoticeRewind(w) ==
  /\ writer[w].phase = "ready" /\ writer[w].at = End /\ writer[w].tail \notin done
  /\ rewind.phase = "none" /\ rewinds > 0
  /\ writer' = [writer EXCEPT ![w] = Away]
  /\ UNCHANGED <<done, aside, late, loader, rewind, position, rows, faults, rewinds, trunk>>

\* The request arrives and is answered; a copy of it may arrive again.
Answer(w) ==
  /\ writer[w].phase = "sent"
  /\ LET claim == writer[w].claim IN
       /\ \/ late' = late
          \/ faults < MostFaults /\ Cardinality(late) < MostLate /\ late' = late \cup {claim}
       /\ faults' = IF late' = late THEN faults ELSE faults + 1
       /\ IF Free(claim) \/ claim \in done
          THEN /\ IF claim \in done THEN Unchanged(claim) ELSE Created(claim)
               /\ writer' = [writer EXCEPT ![w].phase = "made"]
          ELSE /\ Unchanged(claim)
               /\ writer' = [writer EXCEPT ![w] =
                    IF Broken = "after a lost claim the chain is read again"
                    THEN [phase |-> "ready", tail |-> claim, at |-> claim.end, claim |-> NoMarker]
                    ELSE Away]
  /\ UNCHANGED <<aside, loader, rewind, position, rows, rewinds>>

IsThere(tail) ==
  IF Broken = "the marker before is told by its bytes" THEN HasName(done, Name(tail)) ELSE tail \in done

\* Whether a claim was of a position that nobody had claimed before.
IsContinued(claim, tail) ==
  LET highest == \A other \in done : Name(other) <= Name(claim) IN
  CASE Broken = "a claim is looked at afterwards" -> TRUE
    [] tail = NoMarker -> highest \/ Broken = "a first claim is looked at too"
    [] OTHER -> IsThere(tail) /\ (highest \/ Broken = "nothing may be above a claim")

MustWithdraw(claim, tail) ==
  /\ Broken # "a claim behind a rewind is withdrawn"
  /\ tail # NoMarker /\ ~IsThere(tail) /\ tail \in aside
  /\ done \ {claim} # {}

LookAfterClaim(w) ==
  /\ writer[w].phase = "made"
  /\ LET claim == writer[w].claim
         tail == writer[w].tail
     IN IF MustWithdraw(claim, tail)
        THEN /\ done' = done \ {claim}
             /\ Undone(claim)
             /\ writer' = [writer EXCEPT ![w] = Away]
        ELSE /\ UNCHANGED <<done, trunk>>
             /\ writer' = [writer EXCEPT ![w] =
                  IF IsContinued(claim, tail)
                  THEN [phase |-> "ready", tail |-> claim, at |-> claim.end, claim |-> NoMarker]
                  ELSE Away]
  /\ UNCHANGED <<aside, late, loader, rewind, position, rows, faults, rewinds>>

\* It dies, is paused, or hears nothing. What it has sent may still arrive, and may not.
Fail(w) ==
  /\ faults < MostFaults /\ writer[w].phase # "away"
  /\ faults' = faults + 1
  /\ \/ late' = late
     \/ /\ writer[w].phase = "sent" /\ Cardinality(late) < MostLate
        /\ late' = late \cup {writer[w].claim}
  /\ writer' = [writer EXCEPT ![w] = Away]
  /\ UNCHANGED <<done, aside, loader, rewind, position, rows, rewinds, trunk>>

Arrive(claim) ==
  /\ claim \in late
  /\ late' = late \ {claim}
  /\ IF Free(claim) THEN Created(claim) ELSE Unchanged(claim)
  /\ UNCHANGED <<aside, writer, loader, rewind, position, rows, faults, rewinds>>

------------------------------------------------------------------------------
(* Loaders. *)

\* Of a marker that straddles the position the rows beyond it are loaded.
Loadable ==
  LET next == {marker \in done : marker.start <= position /\ position < marker.end}
      further == {marker \in done : marker.start > position}
  IN IF next = {} /\ Broken = "gaps hold" /\ further # {} THEN {Lowest(further)} ELSE next

Plan(l) ==
  /\ loader[l].phase = "idle"
  /\ \E marker \in Loadable :
       loader' = [loader EXCEPT ![l] = [Idle EXCEPT !.phase = "planned", !.plan = marker, !.from = position]]
  /\ UNCHANGED <<done, aside, late, writer, rewind, position, rows, faults, rewinds, trunk>>

Commit(l) ==
  /\ loader[l].phase = "planned"
  /\ LET plan == loader[l].plan
         from == IF Broken = "a straddle's loaded rows are left out" THEN plan.start ELSE loader[l].from
     IN IF position = loader[l].from \/ Broken = "txn versions are compared"
        THEN /\ rows' = [p \in DOMAIN rows |->
                  rows[p] + IF from <= p /\ plan.start <= p /\ p < plan.end THEN 1 ELSE 0]
             /\ position' = plan.end
        ELSE UNCHANGED <<rows, position>>
  /\ loader' = [loader EXCEPT ![l] = Idle]
  /\ UNCHANGED <<done, aside, late, writer, rewind, faults, rewinds, trunk>>

\* A listing shows what may go; the deletes follow one after the other, whatever happens meanwhile.
Finished ==
  LET last == IF Broken = "the last marker stays" \/ done = {} THEN {} ELSE {Highest(done)}
      covered == {marker \in done : marker.end <= position} \ last
  IN IF Broken = "settling is from the low end"
     THEN covered
     ELSE {marker \in covered : \A lower \in done : Name(lower) < Name(marker) => lower \in covered}

List(l) ==
  /\ loader[l].phase = "idle" /\ Finished # {}
  /\ loader' = [loader EXCEPT ![l] =
       [Idle EXCEPT !.phase = "settling", !.going = Names(Finished), !.top = Highest(done)]]
  /\ UNCHANGED <<done, aside, late, writer, rewind, position, rows, faults, rewinds, trunk>>

Delete(l) ==
  /\ loader[l].phase = "settling"
  /\ \E name \in loader[l].going :
       /\ Broken = "settling is from the low end" \/ \A other \in loader[l].going : name <= other
       /\ done' = {marker \in done : Name(marker) # name}
       /\ trunk' = Left(trunk \cap done')
       /\ loader' = [loader EXCEPT ![l] =
            IF loader[l].going = {name} THEN Idle ELSE [loader[l] EXCEPT !.going = @ \ {name}]]
  /\ UNCHANGED <<aside, late, writer, rewind, position, rows, faults, rewinds>>

FailLoader(l) ==
  /\ faults < MostFaults /\ loader[l].phase # "idle"
  /\ faults' = faults + 1
  /\ loader' = [loader EXCEPT ![l] = Idle]
  /\ UNCHANGED <<done, aside, late, writer, rewind, position, rows, rewinds, trunk>>

------------------------------------------------------------------------------
(* The operator. *)

\* To the end of a marker that stays, and not below the table.
BeginRewind ==
  /\ rewinds < MostRewinds /\ rewind.phase = "none"
  /\ \E kept \in done :
       LET going == {marker \in done : marker.end > kept.end} IN
       /\ kept.end >= position /\ going # {}
       /\ rewind' = [phase |-> "going", going |-> going, gone |-> Starts(going)]
       /\ aside' = aside \cup going
  /\ rewinds' = rewinds + 1
  /\ UNCHANGED <<done, late, writer, loader, position, rows, faults, trunk>>

\* Highest first.
PutAside ==
  /\ rewind.phase = "going" /\ rewind.going # {}
  /\ LET marker == Highest(rewind.going) IN
       /\ done' = {other \in done : Name(other) # Name(marker)}
       /\ Undone(marker)
       /\ rewind' = [rewind EXCEPT !.going = @ \ {marker}]
  /\ UNCHANGED <<aside, late, writer, loader, position, rows, faults, rewinds>>

\* What running writers added behind it meanwhile.
PutLateAside ==
  /\ rewind.phase = "going" /\ rewind.going = {}
  /\ LET more == {marker \in done : marker.previous \in rewind.gone \ Starts(done)} IN
       IF more = {}
       THEN rewind' = NoRewind /\ UNCHANGED aside
       ELSE /\ rewind' = [phase |-> "going", going |-> more, gone |-> rewind.gone \cup Starts(more)]
            /\ aside' = aside \cup more
  /\ UNCHANGED <<done, late, writer, loader, position, rows, faults, rewinds, trunk>>

------------------------------------------------------------------------------

Write(w) == ReadChain(w) \/ NoticeRewind(w) \/ Send(w) \/ Answer(w) \/ LookAfterClaim(w)
Load(l) == Plan(l) \/ Commit(l)
Settle(l) == List(l) \/ Delete(l)
Operate == PutAside \/ PutLateAside

Next ==
  \/ \E w \in Writers : Write(w) \/ Fail(w)
  \/ \E claim \in late : Arrive(claim)
  \/ \E l \in Loaders : Load(l) \/ Settle(l) \/ FailLoader(l)
  \/ BeginRewind \/ Operate

\* Who can go on does, sooner or later. Late claims need not arrive; loaders need not settle.
Fairness ==
  /\ \A w \in Writers : WF_vars(Write(w))
  /\ \A l \in Loaders : SF_vars(Plan(l)) /\ WF_vars(Commit(l)) /\ WF_vars(Delete(l))
  /\ WF_vars(Operate)

Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ Fairness

------------------------------------------------------------------------------
(* Safety. *)

\* The table has no position twice and misses none below its own.
EachPositionOnce == \A p \in DOMAIN rows : rows[p] = IF p < position THEN 1 ELSE 0

\* The marker with the highest name is the true chain's last: no stray is ever continued.
\* A rewind makes strays of what writers claim behind it meanwhile, until they look.
Behind == \E marker \in done \ trunk : Linked(marker, aside)
StraysEnd == rewind.phase = "none" /\ ~Behind /\ ~Vanished /\ done # {} => Highest(done) \in trunk

\* What a writer goes on from goes on from what stands there.
GoesOn(w) == writer[w].phase = "made" /\ writer'[w].phase = "ready"
LinksHold == [][\A w \in Writers : GoesOn(w) =>
  writer[w].claim.previous = Nowhere \/ Linked(writer[w].claim, done)]_vars

\* A settled marker leaves none of its chain below it.
LowEndFirst == [][\A l \in Loaders : loader[l].phase = "settling" /\ loader'[l] # loader[l] =>
  \A marker \in done \ done' : ~Linked(marker, trunk)]_vars

\* A chain never vanishes, unless an operator rewinds beside a loader that settles: then it is staged again.
ChainStays == [][~Vanished /\ Vanished' =>
  \/ rewind.phase = "going"
  \/ \A marker \in done \ done' : Linked(marker, aside)
  \/ \E l \in Loaders : loader[l].phase = "settling" /\ (loader[l].top \in aside \/ Linked(loader[l].top, aside))]_vars

(* Progress: all that Kafka has is loaded, and stays loaded. *)
AllIsLoaded == <>(position = End)
=============================================================================
