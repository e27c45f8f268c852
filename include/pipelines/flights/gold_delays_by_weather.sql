-- The weather of an hour at an airport, and what became of the flights that were planned for that hour.
SELECT
    weather.origin,
    weather.time_hour,
    weather.temp,
    weather.wind_speed,
    weather.precip,
    weather.visib,
    coalesce(planned.flights, 0)                  AS flights,
    coalesce(planned.cancelled, 0)                AS cancelled,
    coalesce(planned.delayed, 0)                  AS delayed,
    coalesce(planned.total_dep_delay_minutes, 0)  AS total_dep_delay_minutes
FROM weather
LEFT JOIN (
    SELECT
        origin,
        time_hour,
        count(*)                       AS flights,
        count_if(cancelled)            AS cancelled,
        count_if(dep_delay >= 15)      AS delayed,
        coalesce(sum(dep_delay), 0)    AS total_dep_delay_minutes
    FROM flights
    GROUP BY origin, time_hour
) AS planned
    ON weather.origin = planned.origin AND weather.time_hour = planned.time_hour
